// Rotary positions: the frequencies of a model, scaled as config.json specifies.
//
// Source: transformers, modeling_rope_utils.py (default, linear, llama3, yarn), computed in float32
// as there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

inline constexpr int64_t kPositionsMax = 1 << 28;  // the most that a config.json may name

struct Rope {
  std::string type = "default";
  double theta = 10000;
  std::vector<float> inv_freq;  // [head_dim / 2]
  float scale = 1;              // factor of cos and sin
  int32_t max_positions = 0;    // reach of the scaling; without scaling the requested value
};

// Reads `rope_theta` with `rope_scaling`, or the newer `rope_parameters`. Fails with kUnsupported
// for other types (dynamic would have to change cached keys as a text grows) and unknown keys, and
// with kDataLoss for values out of range.
Result<Rope> read_rope(const Json& config, int32_t head_dim, int32_t max_positions,
                       const std::string& where);

}  // namespace specd
