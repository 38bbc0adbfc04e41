#include "core/engine/routes/room.h"

#include <algorithm>
#include <utility>

namespace specd {
namespace {

uint64_t taken_of(const RouteMemory& memory, std::span<const VersionMemory> held) {
  uint64_t bytes = memory.taken;
  for (const VersionMemory& each : held) bytes += bytes_in(memory, each.limit);
  return bytes;
}

uint64_t left_of(const RouteMemory& memory, uint64_t taken) {
  return memory.bytes - std::min(memory.bytes, taken);
}

// Those that are there when the versions of the route have ended.
std::vector<VersionMemory> without(std::span<const VersionMemory> held, const std::string& route) {
  std::vector<VersionMemory> others;
  for (const VersionMemory& each : held) {
    if (each.limit.route != route || !each.can_leave) others.push_back(each);
  }
  return others;
}

// The first memory without room.
const RouteMemory* too_small(std::span<const RouteMemory> memories,
                             std::span<const VersionMemory> held, const DrafterLimit& next) {
  const auto found = std::find_if(memories.begin(), memories.end(), [&](const auto& memory) {
    return bytes_in(memory, next) > left_of(memory, taken_of(memory, held));
  });
  return found == memories.end() ? nullptr : &*found;
}

// The largest of them, or "nothing".
std::string holders(const RouteMemory& memory, std::span<const VersionMemory> held) {
  constexpr size_t kNamed = 8;
  std::vector<std::pair<uint64_t, const VersionMemory*>> all;
  for (const VersionMemory& each : held) {
    if (const uint64_t bytes = bytes_in(memory, each.limit); bytes > 0)
      all.emplace_back(bytes, &each);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kNamed); ++i) {
    text += (i == 0 ? "" : "; ") + all[i].second->what + " " + std::to_string(all[i].first);
  }
  if (all.size() > kNamed) text += "; and " + std::to_string(all.size() - kNamed) + " more";
  return text.empty() ? "no version of a route" : text;
}

// `beside`: those that are there while `next` is made.
Status no_room(std::span<const RouteMemory> memories, std::span<const VersionMemory> beside,
               const DrafterLimit& next, bool may_stop) {
  const RouteMemory& memory = *too_small(memories, beside, next);
  const uint64_t bytes = bytes_in(memory, next), rings = memory.is_host ? next.ring_bytes : 0;
  std::string text = "the new version of route " + next.route + " may take " +
                     std::to_string(bytes) + " bytes (drafter " + std::to_string(bytes - rings) +
                     "; calls beside the step " + std::to_string(rings) + "), " + memory.name +
                     " has " + std::to_string(left_of(memory, taken_of(memory, beside))) +
                     " left of " + std::to_string(memory.bytes) +
                     (memory.key.empty() ? "" : " (" + memory.key + ")") +
                     "; the rest is of models, KV and steps, " + std::to_string(memory.taken) +
                     ", and of " + holders(memory, beside);
  if (may_stop && too_small(memories, without(beside, next.route), next) == nullptr) {
    return Status(Code::kExhausted, "replace",
                  text + "; apply it with replace: stop_first, and the version before ends first");
  }
  text += "; change or delete routes that hold much, or restart with a smaller model.kv";
  if (!memory.key.empty()) text += " or a larger " + memory.key;
  return Status(Code::kExhausted, std::move(text));
}

}  // namespace

MemoryPeak peak_of(std::span<const RouteMemory> memories, std::span<const VersionMemory> held) {
  MemoryPeak peak;
  for (const RouteMemory& memory : memories) {
    const MemoryPeak here{taken_of(memory, held), memory.bytes};
    if (peak.limit == 0 || here.left() < peak.left()) peak = here;
  }
  return peak;
}

Result<MemoryPeak> room_for(std::span<const RouteMemory> memories,
                            std::span<const VersionMemory> held, const DrafterLimit& next,
                            Replace replace, bool may_stop) {
  const bool stops = replace == Replace::kStopFirst;
  std::vector<VersionMemory> beside =
      stops ? without(held, next.route) : std::vector<VersionMemory>(held.begin(), held.end());
  if (too_small(memories, beside, next) != nullptr)
    return no_room(memories, beside, next, may_stop && !stops);
  beside.push_back({.limit = next, .what = {}});
  const MemoryPeak before = peak_of(memories, held), then = peak_of(memories, beside);
  return before.left() < then.left() ? before : then;
}

}  // namespace specd
