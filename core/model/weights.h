// The weights of a model on a device: matrices packed for its kernels, the rest as float32.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/checkpoint.h"
#include "core/model/model_config.h"

namespace specd {

// Owns its memory on `device`, which outlives it; immutable after load().
class Weights {
 public:
  struct Layer {
    kernels::PackedMatrix qkv, o, gate_up, down;  // side by side where two or three names stand
    const float *attention_norm = nullptr, *mlp_norm = nullptr;  // [hidden]
    // Null where the model has none: biases as wide as their matrix, norms [head_dim].
    const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr,
                *down_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  };
  // A piece of memory that every forward reads, whatever its rows.
  struct Piece {
    const void* data;
    uint64_t bytes;
  };

  Weights(Device& device, const ModelConfig& config) : device_(device), config_(config) {}

  // Checks every tensor of the directory, then loads them. `progress` gets a fraction in [0, 1].
  // Memory: the packed weights; of the files only the embedding stays in use, on the CPU.
  Status load(const std::string& model_dir, const std::function<void(double)>& progress);
  // Random bf16 weights of the same shapes, made in place: for benchmarks.
  Status make_random(uint64_t seed);

  kernels::DType dtype = kernels::DType::kBF16;  // of all matrices
  const void* embedding = nullptr;               // [vocab, hidden], row-major
  std::vector<Layer> layers;
  const float* final_norm = nullptr;  // [hidden]
  kernels::PackedMatrix lm_head;
  std::vector<Piece> streamed;  // every packed matrix, in order
  uint64_t held_bytes = 0;      // packed weights and the embedding table
  uint64_t parameters = 0;

 private:
  struct Part {  // of a matrix or vector made of several tensors
    std::string name;
    int32_t n = 0;
  };

  Result<void*> allocate(uint64_t bytes, const char* what);
  Result<kernels::PackedMatrix> matrix(int32_t n_out, int32_t n_in);
  Status allocate_matrices();
  Status load_layer(const std::string& prefix, Layer& layer);
  void pack(const kernels::PackedMatrix& into, const std::vector<Part>& parts);
  Result<const float*> vector_of(const std::vector<Part>& parts);
  Result<const void*> embedding_of(const TensorView& view);

  Device& device_;
  ModelConfig config_;
  std::optional<Checkpoint> checkpoint_;  // holds the embedding table of the CPU
  std::vector<Buffer> buffers_;
};

}  // namespace specd
