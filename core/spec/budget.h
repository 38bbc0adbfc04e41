// How many draft nodes a sequence may bring to the next step. The route's limit and the
// request's, cut by what the text can still use and by the rows the step has left.
#pragma once

#include <algorithm>
#include <cstdint>

namespace specd {

// nodes_max: of the route or the request, the smaller. tokens_left: what the request may still
// emit. chain: nodes are levels, so that more of them than tokens_left - 1 cannot be used (the step
// itself adds one token).
constexpr int32_t draft_budget(int32_t nodes_max, int32_t tokens_left, bool chain) {
  if (tokens_left <= 1) return 0;
  return chain ? std::min(nodes_max, tokens_left - 1) : nodes_max;
}

}  // namespace specd
