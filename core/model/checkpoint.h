// The weights of a model directory: model.safetensors, or the shards listed
// in model.safetensors.index.json.
//
// open() trusts nothing: shard names must be plain file names in the same directory, every tensor
// of the index must be in its shard, and every shard must be a complete safetensors file. Errors
// are those of SafetensorsFile, kDataLoss with the index's path and key, or kUnsupported when the
// directory has weights in another format only.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/model_config.h"
#include "core/model/safetensors.h"

namespace specd::kernels {
struct Ops;
}

namespace specd {

// Owns the mappings: views are valid while it exists. Reading is thread-safe.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& model_dir);
  // The tensors of one safetensors file.
  static Result<Checkpoint> open_file(const std::string& path);

  // REQUIRES a name in tensors()
  const TensorView& at(std::string_view name) const { return *tensors_.find(name)->second.view; }
  const std::string& path_of(std::string_view name) const;  // of the file that contains it
  // Where a tensor is that tensors() does not have.
  std::string place_of_missing(std::string_view name) const;

  struct Entry {
    const TensorView* view;
    size_t file;
  };
  using Tensors = std::map<std::string, Entry, std::less<>>;
  const Tensors& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

  // Returns the tensor if it has exactly this shape and a type that the kernels support; otherwise
  // an error with the difference.
  Result<const TensorView*> require(std::string_view name, std::span<const int64_t> shape) const;

 private:
  explicit Checkpoint(std::string model_dir) : model_dir_(std::move(model_dir)) {}
  Status open_shards(const std::string& index_path);
  void add_only(SafetensorsFile file);

  std::string model_dir_;
  bool is_sharded_ = false;
  std::vector<SafetensorsFile> files_;  // must not grow while views exist
  Tensors tensors_;
};

// False for tensors that a forward does not use although check_tensors() accepts them: tables written by
// older versions, a copy of the embedding, and heads that were trained with the model and are
// published in its files (FasterDecoding/Medusa 1.0).
bool is_used(const std::string& tensor, const ModelConfig& config);

// Whether the matrix of a module is stored as codes.
bool is_quantized(const Checkpoint& checkpoint, const ModelConfig& config,
                  const std::string& module);
// Of the tensors that a forward uses. REQUIRES that they are checked.
uint64_t parameters_of(const Checkpoint& checkpoint, const ModelConfig& config);

// Checks that every tensor required by the configuration is present with the right shape and a
// supported type, and that there are no tensors that a forward would not use. Fails with kDataLoss
// or kUnsupported, with name, expected and found.
Status check_tensors(const Checkpoint& checkpoint, const ModelConfig& config);
// What a rank's part of k is a multiple of in the model's o_proj and down_proj (SplitRule): the most of their
// types. Those of codes have no part of k. From the headers, which are checked.
Result<int32_t> grain_of(const std::string& path, const ModelConfig& config,
                         const kernels::Ops& ops);

}  // namespace specd
