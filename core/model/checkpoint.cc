#include "core/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <system_error>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/model/kv_scales.h"
#include "core/model/layer_matrices.h"
#include "core/model/quantized_matrix.h"
#include "specd/kernels/ops.h"

namespace specd {
namespace {

constexpr uint64_t kIndexBytesMax = 64u << 20;
constexpr size_t kShardsMax = 1024;
constexpr size_t kNameBytesMax = 255;
constexpr const char* kSingle = "/model.safetensors";
constexpr const char* kIndex = "/model.safetensors.index.json";

// Whether `name` is a plain file name, so that a shard cannot be outside the directory.
bool is_shard_name(const std::string& name) {
  return name.size() <= kNameBytesMax && name.ends_with(".safetensors") && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  c == '.' || c == '_' || c == '-';
         });
}

// Whether it ends as what torch.save() writes is usually called.
bool is_pickled(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
}

bool is_gguf(std::string_view name) { return name.ends_with(".gguf"); }

// The first such file of a folder by name, or "".
std::string find_file(const std::string& folder, bool (*is_such)(std::string_view)) {
  std::string first;
  std::error_code failure;
  std::filesystem::directory_iterator at(folder, failure);
  for (; !failure && at != std::filesystem::directory_iterator(); at.increment(failure)) {
    const std::string name = at->path().filename().string();
    if (is_such(name) && (first.empty() || name < first)) first = name;
  }
  return first.empty() ? first : folder + "/" + first;
}

// The pickled weights of a folder: those of transformers, or else the first by name. "" without any.
std::string find_pickled(const std::string& folder) {
  for (const char* name : {"/pytorch_model.bin", "/pytorch_model.bin.index.json"}) {
    if (path_exists(folder + name)) return folder + name;
  }
  return find_file(folder, is_pickled);
}

// `convert` is the file or the folder to give to the script, `then` what to do with what it writes.
// The script's path is the same in this repository and below share/specd of an installed SDK.
Status pickled_status(const std::string& file, const std::string& convert, const char* then) {
  return Status(Code::kUnsupported,
                quote(file, 400) +
                    ": pickled weights are not loaded (loading them can run code); convert them "
                    "with the script of the SDK: python3 sdk/tools/pickle_to_safetensors.py " +
                    quote(convert, 400) + then);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& model_dir) {
  Checkpoint checkpoint(model_dir);
  const std::string index = model_dir + kIndex;
  // A single file takes precedence, as in transformers.
  if (!path_exists(model_dir + kSingle) && path_exists(index)) {
    checkpoint.is_sharded_ = true;
    SPECD_OK_OR_RETURN(checkpoint.open_shards(index));
    return checkpoint;
  }
  Result<SafetensorsFile> file = SafetensorsFile::open(model_dir + kSingle);
  if (file.status().code() == Code::kNotFound && !path_exists(model_dir + kSingle)) {
    if (const std::string pickled = find_pickled(model_dir); !pickled.empty()) {
      return pickled_status(pickled, model_dir, "");
    }
    if (const std::string gguf = find_file(model_dir, is_gguf); !gguf.empty()) {
      return Status(
          Code::kUnsupported,
          quote(gguf, 400) + ": GGUF is not read; use the safetensors files that it was made from");
    }
    if (!path_exists(model_dir)) return file.status();
    return Status(Code::kNotFound, quote(model_dir, 400) + ": there is neither " + (kSingle + 1) +
                                       " nor " + (kIndex + 1) +
                                       " in it; expected the folder of a model or a head");
  }
  if (!file.ok()) return file.status();
  checkpoint.add_only(std::move(file).value());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_file(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (file.status().code() == Code::kDataLoss && is_pickled(path)) {
    return pickled_status(path, path, ", and name the .safetensors file that it writes");
  }
  if (!file.ok()) return file.status();
  Checkpoint checkpoint(path);
  checkpoint.add_only(std::move(file).value());
  return checkpoint;
}

void Checkpoint::add_only(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const auto& [name, view] : files_.front().tensors()) tensors_.emplace(name, Entry{&view, 0});
}

Status Checkpoint::open_shards(const std::string& index_path) {
  const std::string where = quote(index_path, 400);
  SPECD_TRY(const Json index, parse_json_file(index_path, kIndexBytesMax));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    return Status(Code::kDataLoss, where +
                                       ": expected {\"weight_map\": {tensor: file, ...}}, found " +
                                       quote(index.dump(-1, ' ', true), 80));
  }
  std::map<std::string, size_t> shards;
  for (const auto& [tensor, value] : map->items()) {
    const std::string place = where + ": weight_map, " + quote(tensor);
    if (!value.is_string() || !is_shard_name(value.get_ref<const std::string&>())) {
      return Status(Code::kDataLoss,
                    place +
                        ": expected the name of a .safetensors file of this folder (letters, "
                        "digits, '.', '_' and '-'), found " +
                        quote(value.dump(-1, ' ', true)));
    }
    shards.try_emplace(value.get<std::string>(), shards.size());
    if (shards.size() > kShardsMax) {
      return Status(Code::kDataLoss,
                    where + ": more than " + std::to_string(kShardsMax) + " files");
    }
  }
  std::vector<std::string> names(shards.size());
  for (const auto& [name, number] : shards) names[number] = name;
  for (const std::string& name : names) {
    Result<SafetensorsFile> file = SafetensorsFile::open(model_dir_ + "/" + name);
    if (!file.ok()) return file.status().with_context(where + ": weight_map");
    files_.push_back(std::move(file).value());
  }
  for (const auto& [tensor, value] : map->items()) {
    const size_t number = shards.at(value.get_ref<const std::string&>());
    const TensorView* view = files_[number].find(tensor);
    if (view == nullptr) {
      return Status(Code::kDataLoss, where + ": weight_map, " + quote(tensor) + ": " +
                                         quote(value.get_ref<const std::string&>()) +
                                         " has no such tensor");
    }
    tensors_.emplace(tensor, Entry{view, number});
  }
  return Status();
}

const std::string& Checkpoint::path_of(std::string_view name) const {
  return files_[tensors_.find(name)->second.file].path();
}

std::string Checkpoint::place_of_missing(std::string_view name) const {
  return (is_sharded_ ? quote(model_dir_ + kIndex, 400) + ": weight_map"
                      : quote(files_.front().path(), 400)) +
         ", tensor " + quote(name);
}

Result<const TensorView*> Checkpoint::require(std::string_view name,
                                              std::span<const int64_t> shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end() && is_sharded_) {
    return Status(Code::kDataLoss,
                  place_of_missing(name) + ": missing; expected with shape " + shape_text(shape));
  }
  return files_[found == tensors_.end() ? 0 : found->second.file].require(name, shape);
}

bool is_used(const std::string& tensor, const ModelConfig& config) {
  return !tensor.ends_with(".rotary_emb.inv_freq") && !tensor.starts_with("medusa_head.") &&
         !(tensor == "lm_head.weight" && config.tie_word_embeddings);
}

bool is_quantized(const Checkpoint& checkpoint, const ModelConfig& config,
                  const std::string& module) {
  if (config.quantization.of(module) == nullptr) return false;
  return !config.quantization.tensors_decide() ||
         checkpoint.tensors().contains(module + ".qweight");
}

uint64_t parameters_of(const Checkpoint& checkpoint, const ModelConfig& c) {
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim,
                mlp = c.intermediate_size;
  int64_t n = c.n_layers * (2 * q + 2 * kv + 3 * mlp) * c.hidden_size +
              int64_t{c.vocab_size} * c.hidden_size * (c.tie_word_embeddings ? 1 : 2);
  for (const auto& [name, entry] : checkpoint.tensors()) {
    if (!is_used(name, c) || !(name.ends_with("norm.weight") || name.ends_with(".bias"))) continue;
    n += static_cast<int64_t>(entry.view->bytes / tensor_type_bytes(entry.view->type));
  }
  return static_cast<uint64_t>(n);
}

Status check_tensors(const Checkpoint& checkpoint, const ModelConfig& c) {
  std::set<std::string, std::less<>> used;
  const auto need = [&](const std::string& name, std::initializer_list<int64_t> shape) -> Status {
    const auto found =
        checkpoint.require(name, std::span<const int64_t>(shape.begin(), shape.size()));
    used.insert(name);
    return found.ok() ? Status() : found.status();
  };
  const auto weights_of = [&](const std::string& module, int32_t out, int32_t in) -> Status {
    if (!is_quantized(checkpoint, c, module)) return need(module + ".weight", {out, in});
    return QuantizedMatrix::open(checkpoint, module, out, in, *c.quantization.of(module),
                                 [&](const std::string& name) { used.insert(name); })
        .status();
  };
  SPECD_OK_OR_RETURN(need("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}));
  for (int32_t i = 0; i < c.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    if (!c.quantization.is_empty()) {
      const auto scales =
          kv_scales(checkpoint, layer, [&](const std::string& name) { used.insert(name); });
      SPECD_OK_OR_RETURN(scales.status());
    }
    SPECD_OK_OR_RETURN(need(layer + "input_layernorm.weight", {c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "post_attention_layernorm.weight", {c.hidden_size}));
    if (c.head_norm) {
      SPECD_OK_OR_RETURN(need(layer + "self_attn.q_norm.weight", {c.head_dim}));
      SPECD_OK_OR_RETURN(need(layer + "self_attn.k_norm.weight", {c.head_dim}));
    }
    for (const LayerMatrix& each : layer_matrices(c, i)) {
      SPECD_OK_OR_RETURN(weights_of(each.module, each.n_out, each.n_in));
      // Quantizers write biases for layers that had none.
      const bool some = is_quantized(checkpoint, c, each.module) &&
                        checkpoint.tensors().contains(each.module + ".bias");
      if (each.has_bias || some) {
        SPECD_OK_OR_RETURN(need(each.module + ".bias", {each.n_out}));
      }
    }
  }
  SPECD_OK_OR_RETURN(need("model.norm.weight", {c.hidden_size}));
  if (!c.tie_word_embeddings) {
    SPECD_OK_OR_RETURN(weights_of("lm_head", c.vocab_size, c.hidden_size));
  }
  for (const auto& [name, entry] : checkpoint.tensors()) {
    if (used.contains(name) || !is_used(name, c)) continue;
    return Status(Code::kUnsupported,
                  quote(checkpoint.path_of(name), 400) + ", tensor " + quote(name) +
                      ": a forward of " + c.architecture +
                      " as config.json describes it would leave it out; expected only tensors "
                      "that it uses");
  }
  return Status();
}

Result<int32_t> grain_of(const std::string& path, const ModelConfig& config,
                         const kernels::Ops& ops) {
  SPECD_TRY(const Checkpoint files, Checkpoint::open(path));
  SPECD_OK_OR_RETURN(check_tensors(files, config));
  int32_t grain = 1;
  for (int32_t i = 0; i < config.n_layers; ++i) {
    const auto matrices = layer_matrices(config, i);
    for (const LayerMatrixKind kind : {kOProj, kDownProj}) {
      const std::string& module = matrices[kind].module;
      if (is_quantized(files, config, module)) continue;
      const kernels::DType dtype = kernel_dtype(files.at(module + ".weight").type).value();
      grain = std::max(grain, ops.split_rule(dtype).grain);
    }
  }
  return grain;
}

}  // namespace specd
