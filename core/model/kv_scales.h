// The scales that a checkpoint brings for a cache in FP8: one for the keys of a layer and one for its
// values. A number of the cache is E4M3(x / scale); see specd/kernels/attention.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/model/checkpoint.h"

namespace specd {

struct KvScales {
  float k = 1, v = 1;
};

// Of a layer, whose names begin with `prefix` ("model.layers.0."). 1 where the checkpoint has none.
// `on_tensor` gets the name of each tensor that belongs to a quantized cache, also of those that only
// attention in FP8 would use (q_scale, prob_scale). kDataLoss with file, tensor, expected and found for
// a scale that is not one number above zero, for two that differ, and for keys without values.
Result<KvScales> kv_scales(const Checkpoint& checkpoint, const std::string& prefix,
                           const std::function<void(const std::string&)>& on_tensor);

}  // namespace specd
