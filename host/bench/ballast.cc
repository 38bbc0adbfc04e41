// Entry: write_ballast(). A plan of tensors is made first, each with the code that writes it; sizes
// and the header follow from the plan, then one pass writes the file.
#include "host/bench/ballast.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <vector>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/model/checkpoint.h"
#include "core/model/transformer.h"
#include "host/base/table.h"

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
constexpr size_t kBufferBytes = size_t{4} << 20;
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

Status cannot(const std::string& what, const std::string& path, int error) {
  return Status(error == ENOSPC ? Code::kExhausted : Code::kFailedPrecondition,
                "cannot " + what + " " + path + ": " + std::strerror(error));
}

// A file that is written through a buffer.
class FileWriter {
 public:
  FileWriter(const std::string& path, const BallastOptions& options)
      : path_(path), options_(options) {
    buffer_.reserve(kBufferBytes);
  }
  ~FileWriter() {
    if (fd_ >= 0) close(fd_);
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  Status open(uint64_t total) {
    total_ = total;
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd_ >= 0 ? Status() : cannot("create", path_, errno);
  }
  Status write(const void* data, uint64_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const uint64_t take = std::min<uint64_t>(bytes, kBufferBytes - buffer_.size());
      buffer_.insert(buffer_.end(), at, at + take);
      at += take;
      bytes -= take;
      if (buffer_.size() == kBufferBytes) SPECD_OK_OR_RETURN(flush());
    }
    return Status();
  }
  Status close_synced() {
    SPECD_OK_OR_RETURN(flush());
    if (fsync(fd_) != 0) return cannot("write", path_, errno);
    const int fd = std::exchange(fd_, -1);
    return ::close(fd) == 0 ? Status() : cannot("write", path_, errno);
  }

 private:
  Status flush() {
    if (options_.stop != nullptr && *options_.stop)
      return Status(Code::kCancelled, "stopped while writing " + path_ + "; it is removed");
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return cannot("write", path_, n < 0 ? errno : ENOSPC);
      done += static_cast<size_t>(n);
    }
    written_ += buffer_.size();
    buffer_.clear();
    if (options_.progress)
      options_.progress(static_cast<double>(written_) / static_cast<double>(total_));
    return Status();
  }

  std::string path_;
  const BallastOptions& options_;
  std::vector<char> buffer_;
  uint64_t written_ = 0, total_ = 0;
  int fd_ = -1;
};

// Weights of either sign and magnitude 2^-6 to 2^-5: any values that keep activations finite do.
class RandomWeights {
 public:
  RandomWeights(TensorType type, uint64_t seed) : type_(type), state_(seed | 1) {}

  Status write(FileWriter& file, uint64_t count) {
    const uint64_t element = tensor_type_bytes(type_);
    std::vector<char> block(std::min<uint64_t>(count, 1 << 16) * element);
    while (count > 0) {
      const uint64_t n = std::min<uint64_t>(count, 1 << 16);
      for (uint64_t i = 0; i < n; ++i) put(block.data() + i * element, next());
      SPECD_OK_OR_RETURN(file.write(block.data(), n * element));
      count -= n;
    }
    return Status();
  }

 private:
  uint64_t next() {  // xorshift
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ >> 16;
  }
  // Sign and mantissa from `bits`, the exponent of 2^-6.
  void put(char* to, uint64_t bits) const {
    if (type_ == TensorType::kF32) {
      const auto value = static_cast<uint32_t>((bits & 0x807F'FFFF) | uint64_t{121} << 23);
      std::memcpy(to, &value, sizeof(value));
      return;
    }
    const bool half = type_ == TensorType::kF16;
    const auto value = static_cast<uint16_t>(half ? (bits & 0x83FF) | uint64_t{9} << 10
                                                  : (bits & 0x807F) | uint64_t{121} << 7);
    std::memcpy(to, &value, sizeof(value));
  }

  TensorType type_;
  uint64_t state_;
};

uint16_t one_in_two_bytes(TensorType type) { return type == TensorType::kF16 ? 0x3C00 : 0x3F80; }

struct PlannedTensor {
  std::string name;
  TensorType type;
  std::vector<int64_t> shape;
  std::function<Status(FileWriter&)> write;

  uint64_t bytes() const {
    uint64_t n = tensor_type_bytes(type);
    for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
};

class Plan {
 public:
  Plan(const Checkpoint& source, const ModelConfig& config, const BallastShape& shape)
      : config_(config),
        shape_(shape),
        type_(source.at("model.embed_tokens.weight").type),
        random_(type_, 0x5EC0DE) {
    for (const auto& [name, entry] : source.tensors()) add_source(name, *entry.view);
    for (int32_t i = config.n_layers; i < shape.n_layers; ++i)
      add_layer("model.layers." + std::to_string(i) + ".");
  }

  const std::vector<PlannedTensor>& tensors() const { return tensors_; }

  // The length and the JSON, padded so that the values are aligned to 64 bytes.
  std::string header(const std::string& note) const {
    Json json{{"__metadata__", {{"format", "pt"}, {"specd_ballast", note}}}};
    uint64_t offset = 0;
    for (const PlannedTensor& each : tensors_) {
      json[each.name] = {{"dtype", tensor_type_name(each.type)},
                         {"shape", each.shape},
                         {"data_offsets", {offset, offset + each.bytes()}}};
      offset += each.bytes();
    }
    std::string text = json.dump();
    text.append((64 - (8 + text.size()) % 64) % 64, ' ');
    std::string out(8, '\0');
    for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
    return out + text;
  }
  uint64_t data_bytes() const {
    uint64_t bytes = 0;
    for (const PlannedTensor& each : tensors_) bytes += each.bytes();
    return bytes;
  }

 private:
  // Where segment s of `width` inputs begins.
  static int64_t segment_begin(int64_t width, int64_t s) { return width * s / kSegments; }

  void add_source(const std::string& name, const TensorView& view) {
    if (name.ends_with(".mlp.gate_proj.weight") || name.ends_with(".mlp.up_proj.weight")) {
      tensors_.push_back({name,
                          view.type,
                          {shape_.intermediate_size, config_.hidden_size},
                          [this, &view](FileWriter& file) { return write_rows(file, view); }});
    } else if (name.ends_with(".mlp.down_proj.weight")) {
      tensors_.push_back({name,
                          view.type,
                          {config_.hidden_size, shape_.intermediate_size},
                          [this, &view](FileWriter& file) { return write_columns(file, view); }});
    } else {
      tensors_.push_back({name, view.type, view.shape,
                          [&view](FileWriter& file) { return file.write(view.data, view.bytes); }});
    }
  }

  // Each segment's rows, then random ones up to the widened segment's end.
  Status write_rows(FileWriter& file, const TensorView& view) {
    const int64_t old_width = config_.intermediate_size, width = shape_.intermediate_size;
    const uint64_t row = static_cast<uint64_t>(config_.hidden_size) * tensor_type_bytes(view.type);
    for (int64_t s = 0; s < kSegments; ++s) {
      const int64_t begin = segment_begin(old_width, s),
                    n = segment_begin(old_width, s + 1) - begin;
      const int64_t room = segment_begin(width, s + 1) - segment_begin(width, s);
      SPECD_OK_OR_RETURN(
          file.write(static_cast<const char*>(view.data) + static_cast<uint64_t>(begin) * row,
                     static_cast<uint64_t>(n) * row));
      SPECD_OK_OR_RETURN(random_.write(
          file, static_cast<uint64_t>(room - n) * static_cast<uint64_t>(config_.hidden_size)));
    }
    return Status();
  }

  // The same along the columns, zeros in the added places.
  Status write_columns(FileWriter& file, const TensorView& view) {
    const int64_t old_width = config_.intermediate_size, width = shape_.intermediate_size;
    const uint64_t element = tensor_type_bytes(view.type);
    std::vector<char> row(static_cast<uint64_t>(width) * element);
    const char* from = static_cast<const char*>(view.data);
    for (int32_t j = 0; j < config_.hidden_size; ++j) {
      for (int64_t s = 0; s < kSegments; ++s) {
        const int64_t begin = segment_begin(old_width, s);
        const int64_t n = segment_begin(old_width, s + 1) - begin;
        std::memcpy(row.data() + static_cast<uint64_t>(segment_begin(width, s)) * element,
                    from + static_cast<uint64_t>(begin) * element,
                    static_cast<uint64_t>(n) * element);
      }
      SPECD_OK_OR_RETURN(file.write(row.data(), row.size()));
      from += static_cast<uint64_t>(old_width) * element;
    }
    return Status();
  }

  void add_layer(const std::string& prefix) {
    const int64_t h = config_.hidden_size, w = shape_.intermediate_size;
    const int64_t q = int64_t{config_.n_heads} * config_.head_dim;
    const int64_t kv = int64_t{config_.n_kv_heads} * config_.head_dim;
    const auto ones = [this](FileWriter& file) {
      const float wide = 1;
      const uint16_t narrow = one_in_two_bytes(type_);
      for (int32_t i = 0; i < config_.hidden_size; ++i)
        SPECD_OK_OR_RETURN(type_ == TensorType::kF32 ? file.write(&wide, sizeof(wide))
                                                     : file.write(&narrow, sizeof(narrow)));
      return Status();
    };
    const auto add = [&](const char* name, std::vector<int64_t> shape, bool zero) {
      const uint64_t count = static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]);
      tensors_.push_back({prefix + name, type_, std::move(shape), [=, this](FileWriter& file) {
                            return zero ? write_zeros(file, count) : random_.write(file, count);
                          }});
    };
    tensors_.push_back({prefix + "input_layernorm.weight", type_, {h}, ones});
    tensors_.push_back({prefix + "post_attention_layernorm.weight", type_, {h}, ones});
    add("self_attn.q_proj.weight", {q, h}, false);
    add("self_attn.k_proj.weight", {kv, h}, false);
    add("self_attn.v_proj.weight", {kv, h}, false);
    add("self_attn.o_proj.weight", {h, q}, true);
    add("mlp.gate_proj.weight", {w, h}, false);
    add("mlp.up_proj.weight", {w, h}, false);
    add("mlp.down_proj.weight", {h, w}, true);
  }

  // Zeros are written, not skipped: reading a hole would not touch the disk.
  Status write_zeros(FileWriter& file, uint64_t count) {
    const std::vector<char> zeros(1 << 16);
    for (uint64_t left = count * tensor_type_bytes(type_); left > 0;) {
      const uint64_t n = std::min<uint64_t>(left, zeros.size());
      SPECD_OK_OR_RETURN(file.write(zeros.data(), n));
      left -= n;
    }
    return Status();
  }

  const ModelConfig& config_;
  const BallastShape& shape_;
  TensorType type_;
  RandomWeights random_;
  std::vector<PlannedTensor> tensors_;
};

// Checks that every matrix has the type of the embedding: a forward needs one type, and the added
// weights get it.
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

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? Status() : cannot("write", path, errno != 0 ? errno : EIO);
}

// The source's configuration with the new sizes, marked as ballast.
Json ballast_config(Json config, const BallastOptions& options, const BallastShape& shape,
                    const std::string& name, const std::string& note) {
  config["intermediate_size"] = shape.intermediate_size;
  config["num_hidden_layers"] = shape.n_layers;
  if (options.context > 0) config["max_position_embeddings"] = options.context;
  if (config.contains("layer_types") && config["layer_types"].is_array())
    config["layer_types"] =
        std::vector<std::string>(static_cast<size_t>(shape.n_layers), "full_attention");
  config["_name_or_path"] = name;
  config["_specd_ballast"] = note;
  return config;
}

Status write_folder(const BallastOptions& options, const std::string& folder,
                    const Checkpoint& source, const ModelConfig& config, const BallastShape& shape,
                    const Json& source_config, BallastReport& report) {
  const std::string source_name = fs::path(options.model).filename().string();
  const std::string name =
      source_name + "-ballast-" + std::to_string(options.bytes / 1'000'000) + "MB";
  const std::string note = "ballast for measurements: " + source_name + " with " +
                           std::to_string(shape.n_layers - config.n_layers) +
                           " added layers and an FFN of " +
                           std::to_string(shape.intermediate_size) + " instead of " +
                           std::to_string(config.intermediate_size) +
                           ", whose added output projections are zero; it writes the tokens of " +
                           source_name + " and is no better";
  Plan plan(source, config, shape);
  const std::string header = plan.header(note);
  report.bytes = header.size() + plan.data_bytes();

  FileWriter file(folder + "/model.safetensors", options);
  SPECD_OK_OR_RETURN(file.open(report.bytes));
  SPECD_OK_OR_RETURN(file.write(header.data(), header.size()));
  for (const PlannedTensor& each : plan.tensors()) SPECD_OK_OR_RETURN(each.write(file));
  SPECD_OK_OR_RETURN(file.close_synced());

  SPECD_OK_OR_RETURN(
      write_text(folder + "/config.json",
                 ballast_config(source_config, options, shape, name, note).dump(2) + "\n"));
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

// Renames only if `to` does not exist, so nothing that appeared meanwhile is replaced.
Status rename_new(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return Status();
  return cannot("rename " + from + " to", to, errno);
}

}  // namespace

Result<BallastShape> ballast_shape(const ModelConfig& config, uint64_t source_data_bytes,
                                   uint64_t element_bytes, uint64_t data_bytes) {
  const int64_t h = config.hidden_size;
  const int64_t q = int64_t{config.n_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  const double element = static_cast<double>(element_bytes);
  const double attention = static_cast<double>(2 * h * q + 2 * h * kv + 2 * h) * element;
  const double per_width = static_cast<double>(3 * h) * element;  // one FFN channel of one layer
  const int64_t width_most = std::min<int64_t>(
      kWidthMax, std::max<int64_t>(kWidthOfHiddenMax * h, 2 * int64_t{config.intermediate_size}));
  const double fixed = static_cast<double>(source_data_bytes) -
                       config.n_layers * per_width * config.intermediate_size;
  const double wanted = static_cast<double>(data_bytes);
  const auto size_of = [&](int64_t layers, int64_t width) {
    return fixed + static_cast<double>(layers - config.n_layers) * attention +
           static_cast<double>(layers) * per_width * static_cast<double>(width);
  };
  // Layers at the greatest width, rounded up so that the width can be fitted from above.
  const double missing = wanted - size_of(config.n_layers, width_most);
  const double per_layer = attention + per_width * static_cast<double>(width_most);
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
  for (int64_t step = kWidthStepMax; step >= kSegments; step /= 2) {
    const int64_t fitted = std::llround(width / static_cast<double>(step)) * step;
    // A widened segment must hold the one it replaces.
    if (fitted < int64_t{config.intermediate_size} + kSegments || fitted > kWidthMax) continue;
    const double size = size_of(layers, fitted);
    if (std::abs(size - wanted) > kWidthStepError * wanted) continue;
    return BallastShape{.intermediate_size = static_cast<int32_t>(fitted),
                        .n_layers = static_cast<int32_t>(layers),
                        .data_bytes = static_cast<uint64_t>(size)};
  }
  const int64_t least = (config.intermediate_size / kSegments + 2) * kSegments;
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
                                          "); expected the model that it was made from");
  SPECD_TRY(const Checkpoint source, Checkpoint::open(options.model));
  SPECD_OK_OR_RETURN(check_tensors(source, config));
  SPECD_OK_OR_RETURN(check_one_type(source));

  uint64_t source_data_bytes = 0;
  for (const auto& [name, entry] : source.tensors()) source_data_bytes += entry.view->bytes;
  BallastReport report;
  for (const SafetensorsFile& file : source.files()) report.source_bytes += file.file_bytes();
  SPECD_TRY(
      report.shape,
      ballast_shape(config, source_data_bytes,
                    tensor_type_bytes(source.at("model.embed_tokens.weight").type), options.bytes));

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
  if (mkdtemp(folder.data()) == nullptr) return cannot("create", folder, errno);
  fs::permissions(folder, fs::perms(0755), failure);
  Status status =
      write_folder(options, folder, source, config, report.shape, source_config, report);
  if (status.ok()) status = rename_new(folder, target.string());
  if (!status.ok()) {
    fs::remove_all(folder, failure);
    return status;
  }
  return report;
}

}  // namespace specd::host
