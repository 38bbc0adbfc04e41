// What a request adds to the logits of a row, by the number of tokens that its text has there:
// logit_bias, and minus infinity for the tokens that would end a text shorter than min_tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "specd/kernels/draw.h"

namespace specd {

class LogitBias {
 public:
  LogitBias() = default;
  // `bias`: each token once. `stop_tokens`: those that end the text, in any order.
  LogitBias(const std::vector<kernels::TokenBias>& bias, std::vector<int32_t> stop_tokens,
            int32_t min_tokens)
      : entries_(bias), min_tokens_(min_tokens) {
    if (min_tokens <= 0) return;
    std::sort(stop_tokens.begin(), stop_tokens.end());
    const auto others =
        std::partition(entries_.begin(), entries_.end(), [&](const kernels::TokenBias& each) {
          return std::binary_search(stop_tokens.begin(), stop_tokens.end(), each.token);
        });
    n_of_stops_ = static_cast<size_t>(others - entries_.begin());
    n_masks_ = stop_tokens.size();
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (const int32_t token : stop_tokens) entries_.push_back({.token = token, .add = kNever});
  }

  // In three parts: the bias of stop tokens, that of others, and the masks of stop tokens.
  const std::vector<kernels::TokenBias>& entries() const { return entries_; }
  // The entries [first, second) of a row that draws output token number n, 0 = the first.
  std::pair<size_t, size_t> range(int32_t n) const {
    if (n < min_tokens_) return {n_of_stops_, entries_.size()};
    return {0, entries_.size() - n_masks_};
  }
  // Whether a row that draws output token number n, or a later one, has entries.
  bool applies_from(int32_t n) const {
    const auto [first, last] = range(n);
    return first < last;
  }

 private:
  std::vector<kernels::TokenBias> entries_;
  int32_t min_tokens_ = 0;
  size_t n_of_stops_ = 0, n_masks_ = 0;
};

}  // namespace specd
