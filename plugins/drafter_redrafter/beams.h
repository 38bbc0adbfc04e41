// Beam search on the host: the likeliest beams of one sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace specd::redrafter {

class Beams {
 public:
  struct Beam {
    std::vector<int32_t> tokens;  // drafted
    float score = 0;              // log of the product of their probabilities
    uint32_t parent = 0;          // the beam of the step before that this one continues
  };

  void clear() { beams_.assign(1, Beam()); }
  const std::vector<Beam>& all() const { return beams_; }

  // Continues every beam with its candidates, beam by beam, likeliest first, and keeps the `width`
  // best. logprob: over the whole vocabulary; the candidates' own sum is what they are over.
  void grow(const int32_t* token, const float* logprob, int64_t n_candidates, std::size_t width) {
    struct Next {
      float score;
      uint32_t beam;
      int32_t token;
    };
    std::vector<Next> next;
    for (std::size_t b = 0; b < beams_.size(); ++b) {
      const int32_t* own = token + static_cast<int64_t>(b) * n_candidates;
      const float* own_logprob = logprob + static_cast<int64_t>(b) * n_candidates;
      double sum = 0;
      for (int64_t i = 0; i < n_candidates; ++i) {
        if (own[i] >= 0) sum += std::exp(static_cast<double>(own_logprob[i]));
      }
      const auto total = static_cast<float>(std::log(sum));
      // No beam needs more than `width` of one row.
      const int64_t n = std::min(n_candidates, static_cast<int64_t>(width));
      for (int64_t i = 0; i < n; ++i) {
        const float score = beams_[b].score + (own_logprob[i] - total);
        if (own[i] < 0 || !std::isfinite(score)) continue;
        next.push_back({score, static_cast<uint32_t>(b), own[i]});
      }
    }
    const auto better = [](const Next& x, const Next& y) {
      if (x.score != y.score) return x.score > y.score;
      return x.beam != y.beam ? x.beam < y.beam : x.token < y.token;
    };
    const std::size_t n = std::min(width, next.size());
    std::partial_sort(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(n), next.end(),
                      better);
    std::vector<Beam> grown;
    for (std::size_t i = 0; i < n; ++i) {
      grown.push_back({beams_[next[i].beam].tokens, next[i].score, next[i].beam});
      grown.back().tokens.push_back(next[i].token);
    }
    beams_ = std::move(grown);
  }

 private:
  std::vector<Beam> beams_;
};

}  // namespace specd::redrafter
