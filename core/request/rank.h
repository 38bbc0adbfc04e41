// When a request's turn comes: submission plus its priority times the ageing of one priority level.
// Ordering by it is ordering by "priority less the time waited", at any time; it never changes.
#pragma once

#include <compare>
#include <cstdint>

namespace specd {

struct Rank {  // smaller = sooner
  int64_t due_ns = 0;
  uint64_t number = 0;  // who came first; unique

  auto operator<=>(const Rank&) const = default;
};

}  // namespace specd
