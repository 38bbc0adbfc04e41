// Log-probabilities of the tokens of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// What the model itself gives each token of a stretch of text, whatever the request makes of it: the
// log-softmax of the logits before penalties, bias, temperature and cuts.
struct Logprobs {
  int32_t n_top = 0;              // of the request, the same for all its tokens
  std::vector<float> token = {};  // [tokens]
  std::vector<int32_t> top_token =
      {};                       // [tokens, n_top], most likely first, lower id first on ties
  std::vector<float> top = {};  // [tokens, n_top]

  // Without memory it stays as it was.
  void append(const Logprobs& more) {
    if (more.token.empty()) return;
    n_top = more.n_top;
    token.reserve(token.size() + more.token.size());
    top_token.reserve(top_token.size() + more.top_token.size());
    top.reserve(top.size() + more.top.size());
    token.insert(token.end(), more.token.begin(), more.token.end());
    top_token.insert(top_token.end(), more.top_token.begin(), more.top_token.end());
    top.insert(top.end(), more.top.begin(), more.top.end());
  }
  size_t bytes() const {
    return (token.size() + top.size()) * sizeof(float) + top_token.size() * sizeof(int32_t);
  }
};

}  // namespace specd
