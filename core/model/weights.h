// The weights of a model on a device: matrices packed for its kernels, everything else as float32.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/checkpoint.h"
#include "core/model/code_order.h"
#include "core/model/kv_scales.h"
#include "core/model/model_config.h"
#include "core/model/quantized_matrix.h"
#include "core/model/split.h"
#include "core/model/weight_summary.h"

namespace specd {

// A matrix of the model. Joined ones, such as q, k and v, are side by side: neighbors of one type and, if
// quantized, of one order of k are one packed matrix.
struct Linear {
  struct Part {
    kernels::PackedMatrix matrix;
    int32_t column = 0;  // of its first output
  };
  std::vector<Part> parts;
  int32_t n_out = 0;
};

// Owns its memory on `device`, which must outlive it. Immutable after load().
class Weights {
 public:
  struct Layer {
    Linear qkv, o, gate_up, down;
    const float *attention_norm = nullptr, *mlp_norm = nullptr;  // [hidden]
    // Null when the model has none. Biases are as wide as their matrix; norms are [head_dim].
    const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr,
                *down_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
    KvScales kv_scales;  // for a cache in FP8
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
  // What a forward needs of memory for the linear layers, beside their inputs and outputs.
  struct Work {
    uint64_t scratch = 0;    // for matmuls of codes on the CPU; devices have their own
    bool has_parts = false;  // of a layer, to be put side by side
    bool has_codes = false;  // some matrix
    int32_t segments =
        0;  // of k: most that ranks exchange for a matrix, at least one for each rank
  };
  // held_bytes and work() of a rank after load(), from the headers of the files.
  struct Plan {
    uint64_t held = 0;
    Work work;
  };
  static Result<Plan> plan(Device& device, const std::string& model_dir, const ModelConfig& config,
                           Split split, int32_t rows_max);
  // Fills in random bf16 weights of the same shapes, for benchmarks.
  Status make_random(uint64_t seed);

  kernels::DType dtype = kernels::DType::kBF16;  // of the embedding
  // [vocab, embedding_columns], row-major. All columns, but on devices only those of this rank, and null
  // behind the first stage.
  const void* embedding = nullptr;
  int32_t embedding_columns = 0;
  std::vector<Layer> layers;  // of the stage
  const float* final_norm =
      nullptr;  // [hidden]; null unless the stage is the last, as lm_head's data
  Linear lm_head;
  std::vector<Piece> streamed;  // every packed matrix, in order
  uint64_t held_bytes = 0;      // packed weights, their orders on devices, and the embedding table
  Work work(int32_t n_rows) const;
  // Segments of k of a row-parallel matrix of this type, on all ranks of the stage together.
  int32_t segments_of(kernels::DType dtype) const;
  // The whole embedding as in the file, in host memory. REQUIRES load().
  const TensorView& embedding_in_file() const;
  uint64_t parameters = 0;  // of the whole model
  WeightSummary summary;    // likewise

 private:
  struct Part {  // one tensor of a vector that joins several
    std::string name;
    Range rows;             // elements
    bool may_lack = false;  // then zeros
  };
  // One matrix of a linear layer, and the part of it that this rank has.
  struct Source {
    std::string module;
    int32_t n_out = 0, n_in = 0;  // of the whole
    Range rows, k;
  };
  struct Spec {
    Linear* into;
    std::vector<Source> sources;
    bool shares_k = false;  // o_proj, down_proj
  };
  // Sources that become one packed matrix.
  struct Group {
    std::vector<Source> sources;
    // Of the sources, unless they are quantized; without files there are no tensors.
    kernels::DType dtype = kernels::DType::kBF16;
    std::vector<const TensorView*> tensors;
    std::vector<QuantizedMatrix> quantized;  // of the sources, if they are
    std::shared_ptr<PlacedOrder> order;      // likewise
    int32_t n_out = 0, n_in = 0;
  };

  std::vector<Spec> specs();
  Result<std::vector<Group>> groups_of(const Spec& spec);
  uint64_t packed_bytes(const Group& group) const;
  Status open(const std::string& model_dir);

  Result<void*> allocate(uint64_t bytes, const char* what);
  Result<kernels::PackedMatrix> matrix(const Group& group);
  Status load_linear(const Spec& spec);
  Status load_vectors(int32_t number, Layer& layer);
  void pack(const kernels::PackedMatrix& into, int32_t column, const Source& source,
            const TensorView& tensor);
  Result<const float*> vector_of(const std::vector<Part>& parts);
  Status load_embedding();

  Device& device_;
  const ModelConfig config_;
  const Split split_;
  std::optional<Checkpoint> checkpoint_;  // keeps the embedding table mapped
  std::map<CodeKind, std::shared_ptr<PlacedOrder>> orders_;
  std::vector<Buffer> buffers_;
};

}  // namespace specd
