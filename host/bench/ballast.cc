// Entry: write_ballast(). A list of tensors is made first, each with the code that writes it; sizes and
// the header follow from the list, then one pass writes the file.
#include "host/bench/ballast.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/to_size.h"
#include "core/model/checkpoint.h"
#include "core/model/layer_matrices.h"
#include "core/model/number_at.h"
#include "core/model/split.h"
#include "host/base/table.h"
#include "host/bench/ballast_channels.h"
#include "host/bench/ballast_tensors.h"
#include "host/bench/tensor_file.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSegments = kRowParallelSegments;
constexpr int32_t kWidthOfHiddenMax = 16;
constexpr int32_t kWidthStepMax = 512;
constexpr double kWidthStepError = 0.008;  // of the size; leaves room for the header within 1 %
constexpr int32_t kLayersMax = 4096;       // the limit of a configuration
constexpr int32_t kWidthMax = 1 << 20;
constexpr uint64_t kConfigBytesMax = 16u << 20;
constexpr uint64_t kSpareBytes = uint64_t{64} << 20;  // for the tokenizer and other small files
// Files that are copied if the folder has them.
constexpr const char* kCopied[] = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "chat_template.jinja",
                                   "additional_chat_templates/tool_use.jinja",
                                   "generation_config.json",
                                   "special_tokens_map.json",
                                   "LICENSE",
                                   "LICENSE.txt",
                                   "NOTICE"};

// Checks that every matrix has the type of the embedding: the added weights get it, and their size is
// planned by it.
Status check_one_type(const Checkpoint& source) {
  const TensorType type = source.at("model.embed_tokens.weight").type;
  for (const auto& [name, entry] : source.tensors()) {
    if (entry.view->shape.size() == 2 && entry.view->type != type)
      return Status(Code::kUnsupported, source.path_of(name) + ": tensor " + quote(name) +
                                            ": expected " + tensor_type_name(type) +
                                            " as model.embed_tokens.weight, found " +
                                            tensor_type_name(entry.view->type));
  }
  return Status();
}

// What is not finite has no code.
Status check_finite(const Checkpoint& source) {
  for (const auto& [name, entry] : source.tensors()) {
    const TensorView& view = *entry.view;
    if (!is_layer_matrix(name, view)) continue;
    const uint64_t element = tensor_type_bytes(view.type);
    for (uint64_t i = 0; i < view.bytes / element; ++i) {
      const float value = float_value(view.type, static_cast<const char*>(view.data) + i * element);
      if (std::isfinite(value)) continue;
      const auto width = static_cast<uint64_t>(view.shape[1]);
      return Status(Code::kDataLoss,
                    quote(source.path_of(name), 400) + ", tensor " + quote(name) + ", [" +
                        std::to_string(i / width) + ", " + std::to_string(i % width) +
                        "]: expected a finite number, found " + std::to_string(value));
    }
  }
  return Status();
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? Status() : cannot_write("write", path, errno != 0 ? errno : EIO);
}

double widened_epsilon(const ModelConfig& source, int32_t hidden_size) {
  return std::ldexp(source.rms_norm_eps, -2 * halvings_of(source, hidden_size));
}

// The source's configuration with the new sizes, marked as ballast.
Json ballast_config(Json config, const ModelConfig& source, const BallastOptions& options,
                    const BallastShape& shape, const WeightRounding& rounding,
                    const std::string& name, const std::string& note) {
  config["intermediate_size"] = shape.intermediate_size;
  if (shape.hidden_size != source.hidden_size) {
    config["hidden_size"] = shape.hidden_size;
    config["head_dim"] = source.head_dim;  // else a part of hidden_size
    config["rms_norm_eps"] = widened_epsilon(source, shape.hidden_size);
  }
  config["num_hidden_layers"] = shape.n_layers;
  if (options.context > 0) config["max_position_embeddings"] = options.context;
  if (config.contains("layer_types") && config["layer_types"].is_array())
    config["layer_types"] =
        std::vector<std::string>(static_cast<size_t>(shape.n_layers), "full_attention");
  if (!rounding.is_own()) config["quantization_config"] = rounding.quantization_config();
  config["_name_or_path"] = name;
  config["_specd_ballast"] = note;
  return config;
}

Status write_folder(const BallastOptions& options, const std::string& folder,
                    const Checkpoint& source, const ModelConfig& config, const BallastShape& shape,
                    const WeightRounding& rounding, const Json& source_config,
                    BallastReport& report) {
  const std::string source_name = fs::path(options.model).filename().string();
  const std::string format = weight_format_name(rounding.format);
  const std::string name = source_name + "-ballast-" + std::to_string(options.bytes / 1'000'000) +
                           "MB" + (rounding.is_own() ? "" : "-" + format);
  const std::string note =
      "ballast for measurements: " + source_name + " with " +
      std::to_string(shape.n_layers - config.n_layers) + " added layers and an FFN of " +
      std::to_string(shape.intermediate_size) + " instead of " +
      std::to_string(config.intermediate_size) +
      (shape.hidden_size == config.hidden_size
           ? ""
           : " and a hidden size of " + std::to_string(shape.hidden_size) + " instead of " +
                 std::to_string(config.hidden_size)) +
      ", whose added output projections are zero; it writes the tokens of " + source_name +
      (rounding.is_own() ? "" : " with linear layers in " + format) + " and is no better";
  BallastTensors tensors(source, config, shape, rounding);
  TensorFile file(folder + "/model.safetensors", tensors.tensors(), note, options.progress,
                  options.stop);
  report.bytes = file.bytes();
  SPECD_OK_OR_RETURN(file.create());
  SPECD_OK_OR_RETURN(tensors.write(file));
  SPECD_OK_OR_RETURN(file.close_synced());

  SPECD_OK_OR_RETURN(write_text(
      folder + "/config.json",
      ballast_config(source_config, config, options, shape, rounding, name, note).dump(2) + "\n"));
  SPECD_OK_OR_RETURN(write_text(
      folder + "/README.md", "# " + name + "\n\nNot a model of its own: " + note +
                                 ".\nWritten by `specd-bench ballast`. Every forward reads all of "
                                 "its weights.\n"));
  for (const char* each : kCopied) {
    std::error_code failure;
    const fs::path from = fs::path(options.model) / each;
    if (!fs::is_regular_file(from, failure)) continue;
    const fs::path to = fs::path(folder) / each;
    fs::create_directories(to.parent_path(), failure);
    if (failure || !fs::copy_file(from, to, failure))
      return Status(Code::kFailedPrecondition,
                    "cannot copy " + from.string() + " to " + folder + ": " + failure.message());
  }
  return Status();
}

// A wider stream divides the epsilon and the weights of norms, which must stay exact.
Status check_norms(const Checkpoint& source, const ModelConfig& config,
                   const std::string& config_path, int32_t hidden_size) {
  const int32_t halvings = halvings_of(config, hidden_size);
  if (halvings == 0) return Status();
  if (static_cast<float>(widened_epsilon(config, hidden_size)) < std::numeric_limits<float>::min())
    return Status(Code::kUnsupported, config_path + ": key 'rms_norm_eps': found " +
                                          float_text(static_cast<float>(config.rms_norm_eps)) +
                                          ", which is too small for --hidden " +
                                          std::to_string(hidden_size));
  for (const auto& [name, entry] : source.tensors()) {
    const TensorView& view = *entry.view;
    if (view.shape.size() != 1 || !is_used(name, config)) continue;
    const uint64_t element = tensor_type_bytes(view.type);
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      char value[sizeof(float)];
      std::memcpy(value, static_cast<const char*>(view.data) + to_size(i) * element, element);
      if (halve(view.type, value, halvings)) continue;
      return Status(Code::kUnsupported, source.path_of(name) + ": tensor " + quote(name) + ", " +
                                            place_in(view, i) + ": found " +
                                            float_text(float_at(view, i)) +
                                            ", which --hidden cannot halve exactly");
    }
  }
  return Status();
}

// Of the matrices of a layer with an FFN of `width`.
double layer_bytes(ModelConfig config, const WeightRounding& rounding, int32_t width) {
  config.intermediate_size = width;
  double bytes = 0;
  for (const LayerMatrix& each : layer_matrices(config, 0))
    bytes += static_cast<double>(rounding.bytes(each.n_out, each.n_in));
  return bytes;
}

// Renames only if `to` does not exist, so nothing that appeared meanwhile is replaced.
Status rename_new(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return Status();
  return cannot_write("rename " + from + " to", to, errno);
}

}  // namespace

Result<BallastShape> ballast_shape(const ModelConfig& config, int32_t hidden_size,
                                   uint64_t source_data_bytes, const WeightRounding& rounding,
                                   uint64_t data_bytes) {
  const WeightRounding own{.own = rounding.own};
  const int64_t source_width = config.intermediate_size;
  ModelConfig wide = config;
  wide.hidden_size = hidden_size;
  const double layer = layer_bytes(wide, rounding, 0);
  // One FFN channel of one layer; whole words and groups.
  const double per_width =
      (layer_bytes(wide, rounding, 2048) - layer_bytes(wide, rounding, 1024)) / 1024;
  const auto norms = [&](const ModelConfig& of) {
    return 2.0 * of.hidden_size * static_cast<double>(tensor_type_bytes(rounding.own));
  };
  const int64_t width_limit = std::min(kWidthMax, rounding.inputs_max());
  if (hidden_size > width_limit)
    return Status(Code::kInvalidArgument, "--hidden: expected at most " +
                                              std::to_string(width_limit) + ", found " +
                                              std::to_string(hidden_size));
  const int64_t width_most = std::min(
      width_limit, std::max(kWidthOfHiddenMax * int64_t{config.hidden_size}, 2 * source_width));
  // Bytes that one hidden channel has in the embedding, the head and the last norm.
  const double per_channel =
      (double{1} * config.vocab_size * (config.tie_word_embeddings ? 1 : 2) + 1) *
      static_cast<double>(tensor_type_bytes(rounding.own));
  const double fixed =
      static_cast<double>(source_data_bytes) -
      config.n_layers * (layer_bytes(config, own, config.intermediate_size) + norms(config)) +
      per_channel * (hidden_size - config.hidden_size);
  const double wanted = static_cast<double>(data_bytes);
  const auto size_of = [&](int64_t layers, int64_t width) {
    return fixed + static_cast<double>(layers) *
                       (norms(wide) + layer + per_width * static_cast<double>(width));
  };
  // Layers at the greatest width, rounded up so that the width can be fitted from above.
  const double missing = wanted - size_of(config.n_layers, width_most);
  const double per_layer = size_of(1, width_most) - fixed;
  const double layers_wanted =
      config.n_layers + (missing > 0 ? std::ceil(missing / per_layer) : 0.0);
  if (layers_wanted > kLayersMax)
    return Status(Code::kInvalidArgument,
                  "--bytes: expected at most " +
                      bytes_text(static_cast<uint64_t>(size_of(kLayersMax, width_most))) +
                      " for this model (" + std::to_string(kLayersMax) + " layers), found " +
                      bytes_text(data_bytes));
  const auto layers = static_cast<int64_t>(layers_wanted);
  const double width = (wanted - size_of(layers, 0)) / (static_cast<double>(layers) * per_width);
  const int64_t step_least = std::max<int64_t>(kSegments, rounding.inputs_step());
  const int64_t least = (source_width + kSegments + step_least - 1) / step_least * step_least;
  for (int64_t step = kWidthStepMax; step >= step_least; step /= 2) {
    const int64_t fitted = std::llround(width / static_cast<double>(step)) * step;
    if (fitted > width_limit || fitted < least) continue;
    const double size = size_of(layers, fitted);
    if (step > step_least && std::abs(size - wanted) > kWidthStepError * wanted) continue;
    return BallastShape{.hidden_size = hidden_size,
                        .intermediate_size = static_cast<int32_t>(fitted),
                        .n_layers = static_cast<int32_t>(layers),
                        .data_bytes = static_cast<uint64_t>(size)};
  }
  return Status(Code::kInvalidArgument,
                "--bytes: expected at least " +
                    std::to_string(static_cast<uint64_t>(size_of(config.n_layers, least) * 1.02)) +
                    " for this model (its weights are " + std::to_string(source_data_bytes) +
                    " bytes), found " + std::to_string(data_bytes));
}

Result<BallastReport> write_ballast(const BallastOptions& options) {
  SPECD_TRY(const ModelConfig config, load_model_config(options.model));
  const std::string config_path = options.model + "/config.json";
  SPECD_TRY(const Json source_config, parse_json_file(config_path, kConfigBytesMax));
  if (config.is_ballast)
    return Status(Code::kInvalidArgument,
                  config_path +
                      ": key '_specd_ballast': this is a ballast already; expected the "
                      "model it was made from");
  if (options.context != 0 && options.context < config.max_positions)
    return Status(Code::kInvalidArgument, "--context: expected at least " +
                                              std::to_string(config.max_positions) +
                                              " (max_position_embeddings of " + config_path +
                                              "), found " + std::to_string(options.context));
  const int32_t hidden = options.hidden == 0 ? config.hidden_size : options.hidden;
  const int32_t halvings = halvings_of(config, hidden);
  if (options.hidden != 0 && (halvings < 1 || halvings > 2 ||
                              int64_t{config.hidden_size} << 2 * halvings != options.hidden))
    return Status(Code::kInvalidArgument,
                  "--hidden: expected " + std::to_string(4 * int64_t{config.hidden_size}) + " or " +
                      std::to_string(16 * int64_t{config.hidden_size}) +
                      ", 4 or 16 times that of " + config_path + ", found " +
                      std::to_string(options.hidden));
  std::error_code failure;
  const fs::path tokenizer = fs::path(options.model) / "tokenizer.json";
  if (!fs::is_regular_file(tokenizer, failure))
    return Status(Code::kNotFound, tokenizer.string() + ": expected a file, found none");
  if (config.architecture != "LlamaForCausalLM")
    return Status(Code::kUnsupported, config_path + ": key 'architectures': found " +
                                          config.architecture + ", expected LlamaForCausalLM");
  if (config.qkv_bias || config.o_bias || config.mlp_bias)
    return Status(Code::kUnsupported,
                  config_path + ": key '" + (config.mlp_bias ? "mlp_bias" : "attention_bias") +
                      "': found true, expected false: the added layers have no biases");
  if (!config.quantization.is_empty())
    return Status(Code::kUnsupported, options.model + ": its weights are quantized (" +
                                          config.quantization.name() +
                                          "); expected the model that it was made from, which "
                                          "--weights int8, int4 or fp8 quantizes");
  SPECD_TRY(const Checkpoint source, Checkpoint::open(options.model));
  SPECD_OK_OR_RETURN(check_tensors(source, config));
  SPECD_OK_OR_RETURN(check_one_type(source));
  SPECD_TRY(const WeightRounding rounding,
            WeightRounding::make(options.weights, source.at("model.embed_tokens.weight").type,
                                 config, config_path));
  if (!rounding.is_own()) SPECD_OK_OR_RETURN(check_finite(source));
  SPECD_OK_OR_RETURN(check_norms(source, config, config_path, hidden));

  uint64_t source_data_bytes = 0;
  for (const auto& [name, entry] : source.tensors()) source_data_bytes += entry.view->bytes;
  BallastReport report;
  for (const SafetensorsFile& file : source.files()) report.source_bytes += file.file_bytes();
  SPECD_TRY(report.shape,
            ballast_shape(config, hidden, source_data_bytes, rounding, options.bytes));

  const fs::path out = fs::absolute(options.out, failure).lexically_normal();
  const fs::path target = out.has_filename() ? out : out.parent_path();
  if (fs::exists(fs::symlink_status(target, failure)))
    return Status(Code::kFailedPrecondition,
                  target.string() +
                      ": exists already; nothing is overwritten, remove it or give "
                      "another folder");
  const fs::path parent = target.parent_path();
  if (!fs::is_directory(parent, failure))
    return Status(Code::kNotFound, parent.string() + ": expected a folder to write into, found " +
                                       (fs::exists(parent, failure) ? "a file" : "nothing"));
  const fs::space_info space = fs::space(parent, failure);
  if (failure)
    return Status(Code::kFailedPrecondition,
                  parent.string() + ": cannot tell the free space: " + failure.message());
  if (space.available < report.shape.data_bytes + kSpareBytes)
    return Status(Code::kExhausted, parent.string() + ": expected " +
                                        bytes_text(report.shape.data_bytes + kSpareBytes) +
                                        " of free space, found " + bytes_text(space.available));

  std::string folder = target.string() + ".partial-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return cannot_write("create", folder, errno);
  fs::permissions(folder, fs::perms(0755), failure);
  Status status =
      write_folder(options, folder, source, config, report.shape, rounding, source_config, report);
  if (status.ok()) status = rename_new(folder, target.string());
  if (!status.ok()) {
    fs::remove_all(folder, failure);
    return status;
  }
  return report;
}

}  // namespace specd::host
