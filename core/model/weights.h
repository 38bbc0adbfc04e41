// The weights of a model on a device: matrices packed for its kernels, everything else as float32.
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
#include "core/model/split.h"

namespace specd {

// Owns its memory on `device`, which must outlive it. Immutable after load().
class Weights {
 public:
  struct Layer {
    // joined matrices, such as q, k and v, are side by side
    kernels::PackedMatrix qkv, o, gate_up, down;
    const float *attention_norm = nullptr, *mlp_norm = nullptr;  // [hidden]
    // Null when the model has none. Biases are as wide as their matrix; norms are [head_dim].
    const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr,
                *down_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  };
  // Memory that every forward reads, whatever its rows.
  struct Piece {
    const void* data;
    uint64_t bytes;
  };

  // `config`: of the whole model.
  Weights(Device& device, const ModelConfig& config, Split split)
      : device_(device), config_(config), split_(split) {}

  // Checks every tensor of the directory, then loads this rank's part of them. `progress` receives a fraction in
  // [0, 1]. Uses memory for the packed weights; of the files only the embedding stays mapped,
  // on the CPU.
  Status load(const std::string& model_dir, const std::function<void(double)>& progress);
  // held_bytes of a rank after load(), from the configuration alone. `dtype`: of the matrices.
  static uint64_t planned_bytes(const Device& device, const ModelConfig& config, Split split,
                                kernels::DType dtype);
  // Fills in random bf16 weights of the same shapes, for benchmarks.
  Status make_random(uint64_t seed);

  kernels::DType dtype = kernels::DType::kBF16;  // of all matrices
  // [vocab, embedding_columns], row-major. All columns, but on devices only those of this rank, and null
  // behind the first stage.
  const void* embedding = nullptr;
  int32_t embedding_columns = 0;
  std::vector<Layer> layers;  // of the stage
  const float* final_norm =
      nullptr;  // [hidden]; null unless the stage is the last, as lm_head's data
  kernels::PackedMatrix lm_head;
  std::vector<Piece> streamed;  // every packed matrix, in order
  uint64_t held_bytes = 0;      // packed weights and the embedding table
  // The whole embedding as in the file, in host memory. REQUIRES load().
  const TensorView& embedding_in_file() const;
  uint64_t parameters = 0;  // of the whole model

 private:
  struct Part {  // one tensor of a matrix or vector that joins several
    std::string name;
    Range rows;                   // of the tensor; elements of a vector
    std::optional<Range> k = {};  // columns of the tensor; all by default
  };

  Result<void*> allocate(uint64_t bytes, const char* what);
  Result<kernels::PackedMatrix> matrix(int32_t n_out, int32_t n_in);
  Status allocate_matrices();
  Status load_layer(const std::string& prefix, Layer& layer);
  void pack(const kernels::PackedMatrix& into, const std::vector<Part>& parts);
  Result<const float*> vector_of(const std::vector<Part>& parts);
  Status load_embedding();

  Device& device_;
  const ModelConfig config_;
  const Split split_;
  std::optional<Checkpoint> checkpoint_;  // keeps the embedding table mapped
  std::vector<Buffer> buffers_;
};

}  // namespace specd
