// Rotary positions: the frequencies of a model, scaled as its config.json asks.
//
// Source: transformers, modeling_rope_utils.py (default, linear, llama3, yarn), in its float32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

struct Rope {
  std::string type = "default";
  double theta = 10000;
  std::vector<float> inv_freq;  // [head_dim / 2]
  float scale = 1;              // of cos and sin
  int32_t max_positions = 0;    // that the scaling reaches; without scaling what was asked for
};

// Reads `rope_theta` with `rope_scaling`, or the newer `rope_parameters`. kUnsupported for other
// types (dynamic: keys in the cache would have to change as a text grows) and keys nobody here has
// heard of; kDataLoss for values out of range.
Result<Rope> read_rope(const Json& config, int32_t head_dim, int32_t max_positions,
                       const std::string& where);

}  // namespace specd
