// Draws the siblings of a guess from the distribution that it was drawn from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace specd::draft_target {

// Calls take(token) for up to `n` more draws beside `first`, in order. Without replacement no token
// comes twice, and there are fewer when no other can be drawn. `weight`: the probabilities; changed.
// Noise: categorical(weights, n), as sdk::Noise.
template <class Noise, class Take>
void draw_siblings(std::vector<double>& weight, int32_t first, uint32_t n, bool with_replacement,
                   Noise& noise, Take&& take) {
  int32_t last = first;
  for (uint32_t i = 0; i < n; ++i) {
    if (!with_replacement) weight[static_cast<std::size_t>(last)] = 0;
    if (std::accumulate(weight.begin(), weight.end(), 0.0) <= 0) return;
    last = static_cast<int32_t>(noise.categorical(weight.data(), weight.size()));
    take(last);
  }
}

}  // namespace specd::draft_target
