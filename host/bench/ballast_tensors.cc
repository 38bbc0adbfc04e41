#include "host/bench/ballast_tensors.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/base/to_size.h"
#include "core/model/layer_matrices.h"
#include "core/model/number_at.h"
#include "core/model/split.h"
#include "host/bench/ballast_channels.h"

namespace specd::host {
namespace {

constexpr char kEnd[] = ".weight";

}  // namespace

bool is_layer_matrix(const std::string& name, const TensorView& view) {
  return name.starts_with("model.layers.") && view.shape.size() == 2;
}

int32_t halvings_of(const ModelConfig& config, int32_t hidden_size) {
  int32_t halvings = 0;
  for (int64_t size = config.hidden_size; size < hidden_size; size *= 4) ++halvings;
  return halvings;
}

bool halve(TensorType type, char* value, int32_t halvings) {
  const bool is_wide = type == TensorType::kF32;
  const uint32_t low = is_wide                    ? 23
                       : type == TensorType::kF16 ? 10
                                                  : 7,  // of the exponent
      mask = (type == TensorType::kF16 ? 0x1Fu : 0xFFu) << low;
  uint32_t bits = 0;
  std::memcpy(&bits, value, is_wide ? 4 : 2);
  const auto exponent = static_cast<int32_t>((bits & mask) >> low);
  const uint32_t magnitude = bits & (mask | ((1u << low) - 1));
  if (halvings == 0 || magnitude == 0) return true;
  if (exponent <= halvings || (bits & mask) == mask) return false;
  bits -= static_cast<uint32_t>(halvings) << low;
  std::memcpy(value, &bits, is_wide ? 4 : 2);
  return true;
}

void RandomWeights::write(char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    state_ ^= state_ << 13;  // xorshift
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    const uint64_t bits = state_ >> 16;
    // Sign and mantissa from `bits`, the exponent of 2^-6.
    if (type_ == TensorType::kF32) {
      const auto value = static_cast<uint32_t>((bits & 0x807F'FFFF) | uint64_t{121} << 23);
      std::memcpy(to, &value, sizeof(value));
      to += sizeof(value);
      continue;
    }
    const bool half = type_ == TensorType::kF16;
    const auto value = static_cast<uint16_t>(half ? (bits & 0x83FF) | uint64_t{9} << 10
                                                  : (bits & 0x807F) | uint64_t{121} << 7);
    std::memcpy(to, &value, sizeof(value));
    to += sizeof(value);
  }
}

BallastTensors::BallastTensors(const Checkpoint& source, const ModelConfig& config,
                               const BallastShape& shape, const WeightRounding& rounding)
    : config_(config),
      shape_(shape),
      rounding_(rounding),
      element_bytes_(tensor_type_bytes(rounding.own)),
      channels_(ballast_channels(config.intermediate_size, shape.intermediate_size,
                                 rounding.is_own() ? kRowParallelSegments : 1)),
      random_(rounding.own, 0x5EC0DE) {
  for (const auto& [name, entry] : source.tensors()) add_source(name, *entry.view);
  for (int32_t i = config.n_layers; i < shape.n_layers; ++i) add_layer(i);
}

std::vector<NewTensor> BallastTensors::tensors() const {
  std::vector<NewTensor> all;
  for (const Item& item : items_) all.insert(all.end(), item.tensors.begin(), item.tensors.end());
  return all;
}

Status BallastTensors::write(TensorFile& file) {
  for (const Item& item : items_) SPECD_OK_OR_RETURN(item.write(file));
  return Status();
}

void BallastTensors::add_source(const std::string& name, const TensorView& view) {
  if (!is_layer_matrix(name, view)) {
    const bool is_widened = is_used(name, config_);
    std::vector<int64_t> shape = view.shape;
    if (is_widened) shape.back() = shape_.hidden_size;
    items_.push_back({{{name, view.type, shape}}, [=, this, &view](TensorFile& file) {
                        if (is_widened) return write_vectors(file, name, view);
                        TensorWriter writer(file, name);
                        SPECD_OK_OR_RETURN(writer.write(view.data, view.bytes));
                        return writer.finish();
                      }});
    return;
  }
  const std::string module = name.substr(0, name.size() - std::strlen(kEnd));
  const bool is_gate = module.ends_with(".gate_proj"), is_up = module.ends_with(".up_proj"),
             is_down = module.ends_with(".down_proj");
  const int64_t n_rows = view.shape[0], n_read = view.shape[1];
  const auto copy = [this, &view, n_rows, n_read](int64_t j, char* row) {
    if (j >= n_rows) return false;  // an added channel of the residual stream
    const size_t bytes = to_size(n_read) * element_bytes_;
    std::memcpy(row, static_cast<const char*>(view.data) + to_size(j) * bytes, bytes);
    return true;
  };
  const int64_t hidden = shape_.hidden_size;
  if (is_down) return add({module, hidden, shape_.intermediate_size, n_read, true, copy});
  if (module.ends_with(".o_proj")) return add({module, hidden, n_read, n_read, false, copy});
  if (!is_gate && !is_up) return add({module, n_rows, hidden, n_read, false, copy});
  // What is added to a row of activations must not change how the rest of it is rounded: the rows of
  // up_proj are zero, and so are these activations.
  const bool adds_zeros = is_up && !rounding_.is_own();
  add({module, shape_.intermediate_size, hidden, n_read, false, [=, this](int64_t j, char* row) {
         const int32_t from = channels_[to_size(j)];
         if (from >= 0) return copy(from, row);
         if (!adds_zeros) random_.write(row, n_read);
         return !adds_zeros;
       }});
}

void BallastTensors::add_layer(int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  add_norm(prefix + "input_layernorm.weight");
  add_norm(prefix + "post_attention_layernorm.weight");
  ModelConfig widened = config_;
  widened.hidden_size = shape_.hidden_size;
  widened.intermediate_size = shape_.intermediate_size;
  const auto matrices = layer_matrices(widened, layer);
  for (size_t kind = 0; kind < matrices.size(); ++kind) {
    const LayerMatrix& each = matrices[kind];
    const bool is_zero = kind == kOProj || kind == kDownProj;
    add({each.module, each.n_out, each.n_in, each.n_in, false,
         [this, n_in = each.n_in, is_zero](int64_t, char* row) {
           if (!is_zero) random_.write(row, n_in);
           return !is_zero;
         }});
  }
}

void BallastTensors::add_norm(const std::string& name) {
  items_.push_back({{{name, rounding_.own, {shape_.hidden_size}}}, [this, name](TensorFile& file) {
                      TensorWriter writer(file, name);
                      const float wide = 1;
                      const uint16_t narrow = rounding_.own == TensorType::kF16 ? 0x3C00 : 0x3F80;
                      const void* const one = element_bytes_ == sizeof(wide)
                                                  ? static_cast<const void*>(&wide)
                                                  : &narrow;
                      for (int32_t i = 0; i < shape_.hidden_size; ++i)
                        SPECD_OK_OR_RETURN(writer.write(one, element_bytes_));
                      return writer.finish();
                    }});
}

// A norm, or a row of the embedding or the head for each token.
Status BallastTensors::write_vectors(TensorFile& file, const std::string& name,
                                     const TensorView& view) {
  TensorWriter writer(file, name);
  const size_t element = tensor_type_bytes(view.type),
               bytes = to_size(config_.hidden_size) * element;
  const int32_t halvings = halvings_of(config_, shape_.hidden_size);
  std::vector<char> row(to_size(shape_.hidden_size) * element);
  for (uint64_t at = 0; at < view.bytes; at += bytes) {
    std::memcpy(row.data(), static_cast<const char*>(view.data) + at, bytes);
    if (view.shape.size() == 1) {
      for (size_t i = 0; i < bytes; i += element) halve(view.type, row.data() + i, halvings);
    }
    SPECD_OK_OR_RETURN(writer.write(row.data(), row.size()));
  }
  return writer.finish();
}

void BallastTensors::add(Matrix matrix) {
  std::vector<NewTensor> tensors = rounding_.tensors(matrix.module, matrix.n_out, matrix.n_in);
  items_.push_back({std::move(tensors), [this, matrix = std::move(matrix)](TensorFile& file) {
                      return rounding_.is_own() ? write_as_it_is(file, matrix)
                                                : write_rounded(file, matrix);
                    }});
}

// Zeros are written, not skipped: reading a hole would not touch the disk.
Status BallastTensors::write_as_it_is(TensorFile& file, const Matrix& matrix) {
  TensorWriter writer(file, matrix.module + kEnd);
  std::vector<char> row(to_size(matrix.n_in) * element_bytes_);
  std::vector<char> read(to_size(matrix.n_read) * element_bytes_);
  for (int64_t j = 0; j < matrix.n_out; ++j) {
    if (!matrix.row(j, read.data())) {
      std::ranges::fill(row, 0);
    } else if (!matrix.has_channels) {
      std::ranges::copy(read, row.begin());
    } else {
      for (size_t k = 0; k < channels_.size(); ++k) {
        const std::span<char> to(row.data() + k * element_bytes_, element_bytes_);
        std::ranges::fill(to, 0);
        if (channels_[k] >= 0)
          std::memcpy(to.data(), read.data() + to_size(channels_[k]) * element_bytes_, to.size());
      }
    }
    SPECD_OK_OR_RETURN(writer.write(row.data(), row.size()));
  }
  return writer.finish();
}

// Rounds each row as the source has it, so that a widened one gets the codes and scales of its source.
Status BallastTensors::write_rounded(TensorFile& file, const Matrix& matrix) {
  const bool is_packed = rounding_.format == WeightFormat::kInt4;
  const std::vector<NewTensor> tensors =
      rounding_.tensors(matrix.module, matrix.n_out, matrix.n_in);
  TensorWriter code_writer(file, tensors[0].name), scale_writer(file, tensors[1].name);
  const auto n_in = to_size(matrix.n_in), n_read = to_size(matrix.n_read);
  // Without groups all that is read shares a scale, and what follows is zero.
  const size_t group = rounding_.group > 0 ? to_size(rounding_.group) : n_read;
  const size_t read_groups = (n_read + group - 1) / group;
  std::vector<char> row(n_read * element_bytes_);
  std::vector<float> values(read_groups * group);  // the last group may end with zeros
  std::vector<uint8_t> codes(n_in);
  std::vector<float> scales(rounding_.group > 0 ? n_in / group : 1);
  for (int64_t j = 0; j < matrix.n_out; ++j) {
    std::ranges::fill(codes, rounding_.zero_code());
    std::ranges::fill(scales, 1.0f);
    if (matrix.row(j, row.data())) {
      for (size_t k = 0; k < n_read; ++k)
        values[k] = float_value(rounding_.own, row.data() + k * element_bytes_);
      for (size_t g = 0; g < read_groups; ++g)
        scales[g] = rounding_.round({values.data() + g * group, group}, codes.data() + g * group);
    }
    if (is_packed) {  // the first of two in the lower bits
      for (size_t k = 0; k < n_in; k += 2)
        codes[k / 2] = static_cast<uint8_t>(codes[k] | codes[k + 1] << 4);
    }
    SPECD_OK_OR_RETURN(code_writer.write(codes.data(), is_packed ? n_in / 2 : n_in));
    for (const float scale : scales) {
      const size_t bytes = tensor_type_bytes(rounding_.scale_type());
      // BF16 is the upper half.
      SPECD_OK_OR_RETURN(
          scale_writer.write(reinterpret_cast<const char*>(&scale) + sizeof(scale) - bytes, bytes));
    }
  }
  if (is_packed) {
    TensorWriter shape_writer(file, tensors[2].name);
    const int64_t shape[] = {matrix.n_out, matrix.n_in};
    SPECD_OK_OR_RETURN(shape_writer.write(shape, sizeof(shape)));
    SPECD_OK_OR_RETURN(shape_writer.finish());
  }
  SPECD_OK_OR_RETURN(code_writer.finish());
  return scale_writer.finish();
}

}  // namespace specd::host
