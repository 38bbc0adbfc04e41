// The weights of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names.
//
// open() believes nothing: shard names are plain file names of the same directory, every tensor of
// the index is in the shard it names, and every shard is a whole safetensors file. Errors are those
// of SafetensorsFile, and kDataLoss with the index's path and key; a directory that has weights in
// another format only is kUnsupported.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/model_config.h"
#include "core/model/safetensors.h"

namespace specd {

// Owns the mappings: views die with it. Reading is thread-safe.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& model_dir);

  // REQUIRES a name in tensors()
  const TensorView& at(std::string_view name) const { return *tensors_.find(name)->second.view; }
  const std::string& path_of(std::string_view name) const;  // of the file that has it

  struct Entry {
    const TensorView* view;
    size_t file;
  };
  using Tensors = std::map<std::string, Entry, std::less<>>;
  const Tensors& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

  // The tensor with exactly this shape and a type that kernels know, or an error saying what
  // differs.
  Result<const TensorView*> require(std::string_view name, std::span<const int64_t> shape) const;

 private:
  explicit Checkpoint(std::string model_dir) : model_dir_(std::move(model_dir)) {}
  Status open_shards(const std::string& index_path);

  std::string model_dir_;
  bool is_sharded_ = false;
  std::vector<SafetensorsFile> files_;  // never grows while views are out
  Tensors tensors_;
};

// Every tensor that the configuration asks for is there, in its shape and in a type that kernels
// know, and none is there that a forward would leave out; else kDataLoss or kUnsupported with name,
// expected and found.
Status check_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace specd
