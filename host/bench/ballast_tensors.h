// The tensors of a ballast, each with the code that writes it: those of the source, widened, and those of the added
// layers, whose output projections are zero.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/model/checkpoint.h"
#include "core/model/model_config.h"
#include "host/bench/ballast.h"
#include "host/bench/tensor_file.h"
#include "host/bench/weight_format.h"

namespace specd::host {

// Whether a tensor of a plain Llama is a matrix of a linear layer, other than the output head.
bool is_layer_matrix(const std::string& name, const TensorView& view);

// How often the weights of a norm are halved: with each factor of 4 in the hidden size.
int32_t halvings_of(const ModelConfig& config, int32_t hidden_size);
// value / 2^halvings in place, of F32, F16 or BF16; false: not exactly a normal number or zero.
bool halve(TensorType type, char* value, int32_t halvings);

// Finite numbers of either sign and magnitude 2^-6 to 2^-5, in BF16, F16 or F32.
class RandomWeights {
 public:
  RandomWeights(TensorType type, uint64_t seed) : type_(type), state_(seed | 1) {}
  void write(char* to, int64_t count);

 private:
  TensorType type_;
  uint64_t state_;
};

class BallastTensors {
 public:
  // The source has passed check_tensors(), its weights are finite if they are rounded, and `shape` is one of
  // ballast_shape(). All arguments outlive this.
  BallastTensors(const Checkpoint& source, const ModelConfig& config, const BallastShape& shape,
                 const WeightRounding& rounding);

  std::vector<NewTensor> tensors() const;
  // REQUIRES a file of these tensors.
  Status write(TensorFile& file);

 private:
  struct Item {
    std::vector<NewTensor> tensors;
    std::function<Status(TensorFile&)> write;
  };
  struct Matrix {
    std::string module;
    int64_t n_out, n_in;
    int64_t n_read;     // of n_in, that row() gives; the others are zero
    bool has_channels;  // they go to channels_, not to the first places
    // Row j in the source's type; false: all of it is zero.
    std::function<bool(int64_t j, char* row)> row;
  };

  void add_source(const std::string& name, const TensorView& view);
  void add_layer(int32_t layer);
  void add_norm(const std::string& name);
  Status write_vectors(TensorFile& file, const std::string& name, const TensorView& view);
  void add(Matrix matrix);
  Status write_as_it_is(TensorFile& file, const Matrix& matrix);
  Status write_rounded(TensorFile& file, const Matrix& matrix);

  const ModelConfig& config_;
  const BallastShape& shape_;
  const WeightRounding& rounding_;
  const size_t element_bytes_;           // of a weight of the source
  const std::vector<int32_t> channels_;  // ballast_channels()
  RandomWeights random_;
  std::vector<Item> items_;
};

}  // namespace specd::host
