// Whether what a change of routes makes fits into memory beside what is there. Sums and words: it knows no
// instance, thread or clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/engine/memory_plan.h"
#include "core/spec/route.h"
#include "core/spec/route_builder.h"

namespace specd {

// A version of a route, and what it may hold.
struct VersionMemory {
  DrafterLimit limit;
  std::string what;       // "route r, generation 3 (live)"
  bool can_leave = true;  // else its plugin does not return
};

// What is taken at most, in the memory that then has least left, and what that has.
struct MemoryPeak {
  uint64_t bytes = 0, limit = 0;
  uint64_t left() const { return limit - std::min(limit, bytes); }
};
// While all of `held` are there. Nothing when there are no `memories`.
MemoryPeak peak_of(std::span<const RouteMemory> memories, std::span<const VersionMemory> held);

// The peak while `next` is made: beside all of `held` when it overlaps, beside those of other routes when those of
// its own stop first. kExhausted when `next` does not fit then: what it needs, what there is, who holds it, and
// what helps. `may_stop`: stopping first is a way; the field is "replace" when it would help. Else there is none.
Result<MemoryPeak> room_for(std::span<const RouteMemory> memories,
                            std::span<const VersionMemory> held, const DrafterLimit& next,
                            Replace replace, bool may_stop = true);

}  // namespace specd
