// The order in which requests are served: submission time plus priority times the aging time of one
// priority level. At any moment this equals the order of "priority minus time waited", so a rank
// never changes.
#pragma once

#include <compare>
#include <cstdint>

namespace specd {

struct Rank {  // smaller = earlier
  int64_t due_ns = 0;
  uint64_t number = 0;  // order of arrival; unique

  auto operator<=>(const Rank&) const = default;
};

}  // namespace specd
