// Every kind of memory with every kind of version: the sums, and what a refusal says.
#include "core/engine/routes/room.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace specd {
namespace {

constexpr uint64_t kTaken = 1000;

// As an engine on the CPU has them, on the CPU with a limit, and on a device.
std::vector<std::vector<RouteMemory>> all_memories(uint64_t left) {
  const RouteMemory cpu{
      .name = "cpu", .has_models = true, .is_host = true, .bytes = kTaken + left, .taken = kTaken};
  RouteMemory large = cpu, limited = cpu, device = cpu, host = cpu;
  large.bytes += 1000;
  limited.name = "rank 0";
  limited.key = "engine.rank_bytes_max";
  device.name = "cuda:0";
  device.is_host = false;
  host.has_models = false;
  return {{cpu}, {large, limited}, {device, host}};
}

VersionMemory version(const std::string& route, uint64_t bytes, uint64_t rings, bool with_models,
                      bool can_leave = true) {
  return {
      .limit = {.route = route, .bytes = bytes, .is_with_models = with_models, .ring_bytes = rings},
      .what = "route " + route + ", generation 1 (live)",
      .can_leave = can_leave};
}

// Of each memory of a list, what these take together there.
uint64_t sum(const std::vector<RouteMemory>& memories, size_t i,
             const std::vector<VersionMemory>& held) {
  const bool is_device = memories[i].name == "cuda:0", is_split = memories[0].name == "cuda:0";
  uint64_t bytes = kTaken;
  for (const VersionMemory& each : held) {
    const DrafterLimit& limit = each.limit;
    if (!is_split) {
      bytes += limit.bytes + limit.ring_bytes;
    } else if (is_device) {
      bytes += limit.is_with_models ? limit.bytes : 0;
    } else {
      bytes += (limit.is_with_models ? 0 : limit.bytes) + limit.ring_bytes;
    }
  }
  return bytes;
}
bool fits(const std::vector<RouteMemory>& memories, const std::vector<VersionMemory>& held) {
  for (size_t i = 0; i < memories.size(); ++i) {
    if (sum(memories, i, held) > memories[i].bytes) return false;
  }
  return true;
}

TEST(RouteRoom, a_change_is_refused_exactly_when_one_memory_is_too_small) {
  size_t n_fit = 0, n_refused = 0, n_helped = 0;
  for (const uint64_t left : {20u, 30u, 31u, 40u, 45u, 60u, 100u}) {
    for (const std::vector<RouteMemory>& memories : all_memories(left)) {
      for (int kind = 0; kind < 64; ++kind) {
        const bool with_models = (kind & 1) != 0, can_leave = (kind & 2) != 0;
        const uint64_t rings = (kind & 4) != 0 ? 5 : 0, own = (kind & 8) != 0 ? 20 : 0;
        const std::vector<VersionMemory> held = {
            version("r", own, rings, with_models, can_leave),
            version("other", (kind & 16) != 0 ? 10 : 0, 0, !with_models)};
        const DrafterLimit next =
            version("r", (kind & 32) != 0 ? 21 : 11, rings, with_models).limit;
        std::vector<VersionMemory> overlapped = held, alone = {held[1]};
        if (!can_leave) alone.push_back(held[0]);
        overlapped.push_back({.limit = next, .what = {}});
        alone.push_back({.limit = next, .what = {}});
        for (const Replace replace : {Replace::kOverlap, Replace::kStopFirst}) {
          const bool overlaps = replace == Replace::kOverlap;
          const auto peak = room_for(memories, held, next, replace);
          ASSERT_EQ(peak.ok(), fits(memories, overlaps ? overlapped : alone));
          if (peak.ok()) {
            ++n_fit;
            if (fits(memories, held)) {
              EXPECT_LE(peak.value().bytes, peak.value().limit);
            }
            uint64_t least = UINT64_MAX;
            for (size_t i = 0; i < memories.size(); ++i) {
              const uint64_t most =
                  std::max(sum(memories, i, held), sum(memories, i, overlaps ? overlapped : alone));
              least = std::min(least, memories[i].bytes - std::min(memories[i].bytes, most));
            }
            EXPECT_EQ(peak.value().left(), least);
            continue;
          }
          ++n_refused;
          const Status& why = peak.status();
          EXPECT_EQ(why.code(), Code::kExhausted);
          const bool helps = overlaps && fits(memories, alone);
          EXPECT_EQ(why.field(), helps ? "replace" : "");
          EXPECT_EQ(why.message().find("stop_first") != std::string::npos, helps);
          EXPECT_EQ(room_for(memories, held, next, replace, false).status().field(), "");
          n_helped += helps ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(n_fit, 200u);
  EXPECT_GT(n_refused, 200u);
  EXPECT_GT(n_helped, 50u);
}

TEST(RouteRoom, a_refusal_names_the_sizes_the_holders_and_the_remedy) {
  const std::vector<RouteMemory> memories = all_memories(100)[1];
  const std::vector<VersionMemory> held = {version("small", 10, 0, true),
                                           version("r", 60, 20, true)};
  const DrafterLimit next = version("r", 70, 30, true).limit;
  EXPECT_EQ(room_for(memories, held, next, Replace::kOverlap).status().to_string(),
            "RESOURCE_EXHAUSTED: the new version of route r may take 100 bytes (drafter 70; calls "
            "beside the step 30), rank 0 has 10 left of 1100 (engine.rank_bytes_max); the rest is "
            "of models, KV and steps, 1000, and of route r, generation 1 (live) 80; route small, "
            "generation 1 (live) 10; change or delete routes that hold much, or restart with a "
            "smaller model.kv or a larger engine.rank_bytes_max");
  const DrafterLimit less = version("r", 60, 30, true).limit;
  const Status helped = room_for(memories, held, less, Replace::kOverlap).status();
  EXPECT_EQ(helped.field(), "replace");
  EXPECT_NE(helped.message().find("; apply it with replace: stop_first, and the version before"),
            std::string::npos)
      << helped.message();
  EXPECT_TRUE(room_for(memories, held, less, Replace::kStopFirst).ok());
  std::vector<VersionMemory> many(12, version("s", 5, 0, true));
  EXPECT_NE(room_for(memories, many, next, Replace::kOverlap).status().text().find("; and 4 more;"),
            std::string::npos);
}

TEST(RouteRoom, the_peak_is_that_of_the_memory_with_least_left) {
  const std::vector<VersionMemory> held = {version("r", 30, 5, false)};
  EXPECT_EQ(peak_of(all_memories(100)[2], held).bytes, kTaken + 35);
  EXPECT_EQ(peak_of(all_memories(100)[1], held).limit, kTaken + 100);
  EXPECT_EQ(peak_of({}, held).limit, 0u);
}

}  // namespace
}  // namespace specd
