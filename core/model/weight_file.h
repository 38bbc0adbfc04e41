// Weights that a plugin's configuration names: a folder like that of a model, or one safetensors
// file, with the config.json beside them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/model/checkpoint.h"
#include "core/model/code_order.h"
#include "core/model/quantized_matrix.h"

namespace specd {

class WeightFile {
 public:
  // Errors are those of Checkpoint::open(), Quantization::read() and QuantizedMatrix::open(). Refuses files that a
  // link brings from outside of the folder (kFailedPrecondition), except the blobs of a Hugging Face cache, whose
  // snapshots are folders of such links. Of the values it reads those that decide the order of codes alone.
  static Result<std::shared_ptr<const WeightFile>> open(const std::string& path);

  const std::string& path() const { return path_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::optional<Json>& config() const { return config_; }  // an object; none without the file
  // A quantized matrix, which stands for the tensors that have its codes, scales and what else there is.
  struct Coded {
    QuantizedMatrix matrix;
    kernels::CodeOrder counts;  // PlacedOrder::counts() of its kind
  };
  // By the name that the matrix would have if it were not quantized: "MODULE.weight".
  const std::map<std::string, Coded, std::less<>>& coded() const { return coded_; }
  // Of the tensors, and of quantized matrices in place of theirs. In order.
  const std::vector<std::string>& names() const { return names_; }
  uint64_t number() const { return number_; }  // unique in the process
  // Whether the files are still those that were opened.
  bool is_current() const { return identity() == identity_; }

 private:
  WeightFile(std::string path, Checkpoint checkpoint);
  std::string identity() const;
  Status find_coded(const std::string& folder);

  std::string path_;
  Checkpoint checkpoint_;
  std::optional<Json> config_;
  std::string config_path_;
  std::map<std::string, Coded, std::less<>> coded_;
  std::vector<std::string> names_;
  std::string identity_;
  uint64_t number_;
};

}  // namespace specd
