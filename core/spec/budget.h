// How many draft nodes a sequence may have in the next step: the smaller of the route's and the
// request's limit, reduced to what the text can still use. The scheduler reduces it further, to the
// rows and pages that are left.
#pragma once

#include <algorithm>
#include <cstdint>

namespace specd {

// nodes_max: the smaller limit of route and request. tokens_left: tokens that the request may still
// emit. chain: one node per level, so only tokens_left - 1 nodes are useful (the step itself adds
// one token).
constexpr int32_t draft_budget(int32_t nodes_max, int32_t tokens_left, bool chain) {
  if (tokens_left <= 1) return 0;
  return chain ? std::min(nodes_max, tokens_left - 1) : nodes_max;
}

}  // namespace specd
