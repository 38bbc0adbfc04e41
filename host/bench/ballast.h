// Ballast targets: a checkpoint made heavy without changing its logits by a bit. The FFN is widened
// and layers are added whose output projections are zero, so every forward reads as many bytes of
// weights as were asked for.
//
//   SPECD_TRY(const BallastReport made,
//             write_ballast({.model = "configs/zoo/pico-target", .out = "build/heavy",
//                            .bytes = 2'000'000'000}));
//
// BallastOptions::hidden widens the residual stream as well: narrow layers spend much of their time between matmuls, unlike
// those of models that are served.
//
// Why the bits stay the same: the added columns of down_proj are zero, and fma(a, 0, acc) is acc. They
// stand where no sum of the source is cut otherwise (ballast_channels.h). An added layer adds
// o_proj = 0 and down_proj = 0 to the residual stream. The added channels of the stream are zero: a norm's mean of squares
// is a 4th or 16th, as is its epsilon, so the root is exactly a half or a quarter, as are the norm's weights.
//
// With WeightFormat other than kOwn the linear layers are quantized while they are written, and the logits
// are those of the model quantized so by sdk/zoo/recipe/quantize.py. What is added to an activation that a
// forward rounds is zero, so it changes no scale of others.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/model/model_config.h"
#include "host/bench/weight_format.h"

namespace specd::host {

struct BallastOptions {
  std::string model;    // a Hugging Face folder, plain Llama
  std::string out;      // must not exist; appears whole or not at all
  uint64_t bytes = 0;   // of the new model.safetensors, met within 1 % or half a step of the width
  int32_t context = 0;  // 0 = as the model; else the new max_position_embeddings, not below its own
  int32_t hidden = 0;   // 0 = as the model; else the new hidden_size, 4 or 16 times its own
  WeightFormat weights = WeightFormat::kOwn;  // of the linear layers
  std::function<void(double)> progress = {};  // a fraction in [0, 1]; may be empty
  const std::atomic<bool>* stop = nullptr;    // true ends the writing with kCancelled
};

struct BallastShape {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t n_layers = 0;
  uint64_t data_bytes = 0;  // of all tensors
};

struct BallastReport {
  BallastShape shape;
  uint64_t source_bytes = 0, bytes = 0;  // of both model.safetensors
};

// The shape of about `data_bytes` with a `hidden_size` that is the model's or more: the FFN of every layer grows to at most
// 16 times the model's hidden size, the rest becomes layers; then the width is fitted, as a multiple of 512 when that meets the
// size within 0.8 %, else of 256, 128 and so on down to 8, or to a group of kInt4.
// `source_data_bytes`: of all tensors of the source. kInvalidArgument names the smallest or the
// largest possible size, or the largest hidden size.
Result<BallastShape> ballast_shape(const ModelConfig& config, int32_t hidden_size,
                                   uint64_t source_data_bytes, const WeightRounding& rounding,
                                   uint64_t data_bytes);

// Streams, so memory in use stays at a few MiB plus the mapped source. The size is checked against
// the free space first; files grow in a folder beside `out` that is renamed at the end. The result
// is marked as ballast in config.json ("_specd_ballast"), in the file's metadata and in a
// README.md.
Result<BallastReport> write_ballast(const BallastOptions& options);

}  // namespace specd::host
