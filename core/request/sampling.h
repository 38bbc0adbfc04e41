// Sampling parameters: as requested, as applied, and as kernels and plugins get them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/siphash.h"
#include "specd/kernels/draw.h"
#include "specd/plugin_api/batch.h"

namespace specd {

// Complete parameters; see kernels/draw.h for the arithmetic.
struct SamplingParams {
  float temperature = 0;  // 0 = greedy
  float top_p = 1;
  int32_t top_k = 0;  // 0 = off
  uint64_t seed = 0;
  float min_p = 0;               // 0 = off
  float typical_p = 1;           // 1 = off
  float repetition_penalty = 1;  // over prompt and output
  float frequency_penalty = 0;   // over the output
  float presence_penalty = 0;    // over the output

  bool penalizes() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  // How the token of `position` is drawn.
  kernels::DrawRow draw_row(int32_t position) const {
    return {.temperature = temperature,
            .top_p = top_p,
            .min_p = min_p,
            .typical_p = typical_p,
            .top_k = top_k,
            .position = position,
            .seed = seed,
            .greedy = temperature == 0};
  }
  // The parameters as plugins see them, without penalties, bias and masks. tokens_left: that the request may
  // still emit.
  specd_sampling for_plugins(int32_t tokens_left) const {
    specd_sampling sampling{};
    sampling.struct_size = sizeof(sampling);
    sampling.flags = temperature == 0 ? uint32_t{SPECD_SAMPLE_GREEDY} : 0u;
    sampling.temperature = temperature;
    sampling.top_p = top_p;
    sampling.top_k = top_k;
    sampling.min_p = min_p;
    sampling.typical_p = typical_p;
    sampling.seed = seed;
    sampling.tokens_left = static_cast<uint64_t>(std::max(tokens_left, 0));
    return sampling;
  }
};

// How a draft model draws for a request, from a plugin's view of it. The caller sets the position.
inline kernels::DrawRow draw_row(const specd_sampling& sampling) {
  return {.temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .typical_p = sampling.typical_p,
          .top_k = sampling.top_k,
          .seed = sampling.seed,
          .greedy = (sampling.flags & SPECD_SAMPLE_GREEDY) != 0};
}

// A request's parameters. Missing ones come from the model.
struct SamplingRequest {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<float> min_p, typical_p, repetition_penalty, frequency_penalty, presence_penalty;

  SamplingParams over(const SamplingParams& defaults) const {
    return {.temperature = temperature.value_or(defaults.temperature),
            .top_p = top_p.value_or(defaults.top_p),
            .top_k = top_k.value_or(defaults.top_k),
            .seed = seed.value_or(defaults.seed),
            .min_p = min_p.value_or(defaults.min_p),
            .typical_p = typical_p.value_or(defaults.typical_p),
            .repetition_penalty = repetition_penalty.value_or(defaults.repetition_penalty),
            .frequency_penalty = frequency_penalty.value_or(defaults.frequency_penalty),
            .presence_penalty = presence_penalty.value_or(defaults.presence_penalty)};
  }
};

// The distinct tokens of a text, each with its number of occurrences in the output.
class SeenTokens {
 public:
  void add(std::span<const int32_t> tokens, bool is_output) {
    for (const int32_t token : tokens) {
      const auto [place, is_new] = place_.try_emplace(token, seen_.size());
      if (is_new) seen_.push_back({.token = token, .count = 0});
      if (is_output) ++seen_[place->second].count;
    }
  }
  const std::vector<kernels::PenaltySeen>& seen() const { return seen_; }

 private:
  std::vector<kernels::PenaltySeen> seen_;
  std::unordered_map<int32_t, size_t, KeyedIntHash> place_;
};

}  // namespace specd
