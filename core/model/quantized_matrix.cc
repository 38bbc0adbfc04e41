#include "core/model/quantized_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/base/quote.h"
#include "core/base/to_size.h"
#include "core/model/number_at.h"

namespace specd {
namespace {

using Layout = MatrixFormat::Layout;
using Scales = MatrixFormat::Scales;

constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Fields of a word, lowest bits first.
uint8_t field_of(uint32_t word, int64_t index, int32_t bits) {
  return static_cast<uint8_t>((word >> (index * bits)) & ((1u << bits) - 1));
}
// Field `index` of a row of words.
uint8_t field_at(const TensorView& words, int64_t first_word, int64_t index, int32_t bits) {
  const int32_t of_word = 32 / bits;
  return field_of(number_at<uint32_t>(words, first_word + index / of_word), index % of_word, bits);
}
// The first n fields of words that are `stride` apart.
void read_fields(const TensorView& words, int64_t first_word, int64_t stride, int64_t n,
                 int32_t bits, uint8_t* to) {
  const int64_t of_word = 32 / bits;
  for (int64_t k = 0; k < n; k += of_word, first_word += stride) {
    const auto word = number_at<uint32_t>(words, first_word);
    for (int64_t i = 0; i < std::min(of_word, n - k); ++i) to[k + i] = field_of(word, i, bits);
  }
}

// AWQ's place of a column among the eight of a word (casper-hansen/AutoAWQ,
// awq/utils/packing_utils.py).
constexpr int64_t awq_place(int64_t column) {
  constexpr int64_t kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};
  return column / 8 * 8 + kPlaces[column % 8];
}

int64_t integer_at(const TensorView& view, int64_t i) {
  return view.type == TensorType::kI64 ? number_at<int64_t>(view, i) : number_at<int32_t>(view, i);
}

std::string codes_name(const std::string& module, const MatrixFormat& format) {
  switch (format.layout) {
    case Layout::kPacked:
      return module + ".weight_packed";
    case Layout::kGptq:
    case Layout::kAwq:
      return module + ".qweight";
    case Layout::kInt8:
    case Layout::kFloat8:
      break;
  }
  return module + ".weight";
}

}  // namespace

std::string QuantizedMatrix::place() const {
  const std::string codes = codes_name(module_, format_);
  if (!checkpoint_->tensors().contains(codes)) return checkpoint_->place_of_missing(codes);
  return quote(checkpoint_->path_of(codes), 400) + ", tensor " + quote(codes);
}

Status QuantizedMatrix::bad_value(const std::string& name, int64_t index,
                                  const std::string& expected, const std::string& found) const {
  const std::string full = module_ + "." + name, place = place_in(checkpoint_->at(full), index);
  return Status(Code::kDataLoss, quote(checkpoint_->path_of(full), 400) + ", tensor " +
                                     quote(full) + (place.empty() ? "" : ", " + place) +
                                     ": expected " + expected + ", found " + found);
}

Result<const TensorView*> QuantizedMatrix::need(const char* name, const std::vector<int64_t>& shape,
                                                std::initializer_list<TensorType> types) {
  const std::string full = module_ + "." + name;
  const auto found = checkpoint_->tensors().find(full);
  if (found == checkpoint_->tensors().end()) {
    return Status(Code::kDataLoss, checkpoint_->place_of_missing(full) +
                                       ": missing; expected with shape " + shape_text(shape) +
                                       " by " + format_.place);
  }
  const TensorView& view = *found->second.view;
  const std::string where = quote(checkpoint_->path_of(full), 400) + ", tensor " + quote(full);
  on_tensor_(full);
  if (std::ranges::find(types, view.type) == types.end()) {
    std::string names;
    for (const TensorType type : types) {
      names += (names.empty() ? "" : " or ") + std::string(tensor_type_name(type));
    }
    return Status(Code::kDataLoss, where + ": is " + tensor_type_name(view.type) + ", expected " +
                                       names + " by " + format_.place);
  }
  if (!std::ranges::equal(shape, view.shape)) {
    const int64_t sizes[] = {n_out_, n_in_};
    return Status(Code::kDataLoss, where + ": shape " + shape_text(view.shape) + ", expected " +
                                       shape_text(shape) + " for a matrix of " + shape_text(sizes) +
                                       " by " + format_.place);
  }
  return &view;
}

Status QuantizedMatrix::open_codes(const MatrixFormat& format) {
  const int64_t of_word = 32 / format.bits;
  const auto whole_words = [&](const char* what, int64_t n) -> Status {
    if (n % of_word == 0) return Status();
    return Status(Code::kDataLoss, place() + ": " + what + " is " + std::to_string(n) +
                                       ", expected a multiple of " + std::to_string(of_word) +
                                       " for the words of " + format.place);
  };
  switch (format.layout) {
    case Layout::kInt8: {
      SPECD_TRY(codes_, need("weight", {n_out_, n_in_}, {TensorType::kI8}));
      return Status();
    }
    case Layout::kFloat8: {
      SPECD_TRY(codes_, need("weight", {n_out_, n_in_}, {TensorType::kF8E4M3}));
      return Status();
    }
    case Layout::kPacked: {
      SPECD_TRY(codes_,
                need("weight_packed", {n_out_, ceil_div(n_in_, of_word)}, {TensorType::kI32}));
      SPECD_TRY(const TensorView* shape,
                need("weight_shape", {2}, {TensorType::kI64, TensorType::kI32}));
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t said = integer_at(*shape, i);
        const int64_t is = i == 0 ? n_out_ : n_in_;
        if (said != is)
          return bad_value("weight_shape", i, std::to_string(is), std::to_string(said));
      }
      return Status();
    }
    case Layout::kGptq: {
      SPECD_OK_OR_RETURN(whole_words("the number of inputs", n_in_));
      SPECD_OK_OR_RETURN(whole_words("the number of outputs", n_out_));
      SPECD_TRY(codes_, need("qweight", {n_in_ / of_word, n_out_}, {TensorType::kI32}));
      return Status();
    }
    case Layout::kAwq: {
      SPECD_OK_OR_RETURN(whole_words("the number of outputs", n_out_));
      SPECD_TRY(codes_, need("qweight", {n_in_, n_out_ / of_word}, {TensorType::kI32}));
      return Status();
    }
  }
  return Status();
}

Status QuantizedMatrix::open_scales(const MatrixFormat& format) {
  const auto types = {TensorType::kF32, TensorType::kF16, TensorType::kBF16};
  const bool by_groups = format.layout == Layout::kGptq || format.layout == Layout::kAwq;
  scale_name_ = by_groups ? "scales" : format.scale;
  const std::string full = module_ + "." + scale_name_;
  const auto found = checkpoint_->tensors().find(full);
  const size_t dimensions =
      found == checkpoint_->tensors().end() ? 0 : found->second.view->shape.size();
  const int64_t groups = kind_.n_groups;
  const std::vector<int64_t> shape = [&]() -> std::vector<int64_t> {
    if (by_groups) return {groups, n_out_};
    switch (format.scales) {
      case Scales::kTensor:
        return dimensions == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{1};
      case Scales::kChannel:
        return dimensions == 1 ? std::vector<int64_t>{n_out_} : std::vector<int64_t>{n_out_, 1};
      case Scales::kGroup:
        return {n_out_, groups};
      case Scales::kBlock:
        break;
    }
    const int64_t rows = ceil_div(n_out_, format.block_rows);
    return dimensions == 4 ? std::vector<int64_t>{rows, 1, groups, 1}
                           : std::vector<int64_t>{rows, groups};
  }();
  SPECD_TRY(scales_, need(scale_name_.c_str(), shape, types));
  return Status();
}

Status QuantizedMatrix::open_zeros(const MatrixFormat& format) {
  const int64_t of_word = 32 / format.bits, groups = kind_.n_groups;
  switch (format.layout) {
    case Layout::kInt8:
    case Layout::kFloat8:
      return Status();
    case Layout::kPacked: {
      if (!format.has_zeros) return Status();
      SPECD_TRY(zeros_,
                need("weight_zero_point", {ceil_div(n_out_, of_word), groups}, {TensorType::kI32}));
      break;
    }
    case Layout::kGptq:
    case Layout::kAwq: {
      SPECD_TRY(zeros_, need("qzeros", {groups, n_out_ / of_word}, {TensorType::kI32}));
      break;
    }
  }
  kind_.has_zeros = format.has_zeros;
  return Status();
}

Status QuantizedMatrix::open_groups(const MatrixFormat& format) {
  const bool is_grouped = format.scales == Scales::kGroup || format.scales == Scales::kBlock;
  const int64_t group = is_grouped ? format.group : n_in_;
  if (format.scales == Scales::kGroup && n_in_ > group && n_in_ % group != 0) {
    return Status(Code::kDataLoss, place() + ": " + std::to_string(n_in_) +
                                       " inputs, expected a multiple of the group_size " +
                                       std::to_string(group) + " of " + format.place);
  }
  kind_.n_groups = static_cast<int32_t>(ceil_div(n_in_, group));
  kind_.group_of.resize(to_size(n_in_));
  for (int64_t k = 0; k < n_in_; ++k) {
    kind_.group_of[to_size(k)] = static_cast<int32_t>(k / group);
  }
  const bool is_gptq = format.layout == Layout::kGptq;
  const char* const name = is_gptq ? "g_idx" : "weight_g_idx";
  const bool is_there = checkpoint_->tensors().contains(module_ + "." + name);
  const bool needs_order = format.act_order && (!is_gptq || kind_.n_groups > 1);
  if (!needs_order && !(is_gptq && is_there)) return Status();
  SPECD_TRY(const TensorView* order, need(name, {n_in_}, {TensorType::kI32}));
  if (!is_gptq && number_at<int32_t>(*order, 0) == -1) {  // written, but not used
    for (int64_t k = 0; k < n_in_; ++k) {
      const auto found = number_at<int32_t>(*order, k);
      if (found != -1) return bad_value(name, k, "-1, as before it", std::to_string(found));
    }
    return Status();
  }
  for (int64_t k = 0; k < n_in_; ++k) {
    const auto found = number_at<int32_t>(*order, k);
    if (found < 0 || found >= kind_.n_groups) {
      return bad_value(name, k, "a group from 0 to " + std::to_string(kind_.n_groups - 1),
                       std::to_string(found));
    }
    if (is_gptq && !format.act_order && found != kind_.group_of[to_size(k)]) {
      return bad_value(name, k,
                       std::to_string(kind_.group_of[to_size(k)]) + ", since desc_act is false",
                       std::to_string(found));
    }
    kind_.group_of[to_size(k)] = found;
  }
  return Status();
}

Result<QuantizedMatrix> QuantizedMatrix::open(
    const Checkpoint& checkpoint, const std::string& module, int32_t n_out, int32_t n_in,
    const MatrixFormat& format, const std::function<void(const std::string&)>& on_tensor) {
  QuantizedMatrix m;
  m.checkpoint_ = &checkpoint;
  m.on_tensor_ = on_tensor;
  m.module_ = module;
  m.n_out_ = n_out;
  m.n_in_ = n_in;
  m.format_ = format;
  const bool rounds_x = format.inputs != MatrixFormat::Inputs::kNone;
  m.kind_.bits = format.bits;
  m.kind_.x_bits = format.layout == Layout::kFloat8             ? 32
                   : format.layout == Layout::kInt8 && rounds_x ? 8
                                                                : 16;
  if (m.kind_.x_bits == 8 && n_in > kernels::kRun8Max) {
    return Status(Code::kUnsupported, m.place() + ": " + std::to_string(n_in) +
                                          " inputs, supported with 8-bit inputs: up to " +
                                          std::to_string(kernels::kRun8Max));
  }
  SPECD_OK_OR_RETURN(m.open_groups(format));
  SPECD_OK_OR_RETURN(m.open_codes(format));
  SPECD_OK_OR_RETURN(m.open_scales(format));
  SPECD_OK_OR_RETURN(m.open_zeros(format));
  if (format.inputs == MatrixFormat::Inputs::kStatic) {
    const auto found = checkpoint.tensors().find(module + ".input_scale");
    const bool is_scalar = found != checkpoint.tensors().end() && found->second.view->shape.empty();
    const auto types = {TensorType::kF32, TensorType::kF16, TensorType::kBF16};
    SPECD_TRY(const TensorView* scale,
              is_scalar ? m.need("input_scale", {}, types) : m.need("input_scale", {1}, types));
    const float value = float_at(*scale, 0);
    if (!(value > 0) || !std::isfinite(value)) {
      return m.bad_value("input_scale", 0, "a number above 0", float_text(value));
    }
    if (m.kind_.x_bits == 8) m.kind_.x_scale = value;
  }
  m.on_tensor_ = nullptr;  // what it captured may be gone before m is
  return m;
}

// The first format stores z - 1. GPTQModel subtracts and adds on whole words, so that what a zero point of 0
// borrows comes back. With `sym` all are the middle; its newer versions store them as they are under the
// name of the first format, and GPU kernels do not read them.
Result<uint8_t> QuantizedMatrix::gptq_zero(int64_t row, int64_t group) const {
  const int64_t of_word = 32 / format_.bits, at = group * (n_out_ / of_word) + row / of_word;
  const auto word = number_at<uint32_t>(*zeros_, at);
  const auto field = [&](uint32_t of) { return field_of(of, row % of_word, format_.bits); };
  const uint32_t ones = format_.bits == 4 ? 0x11111111u : 0x01010101u;
  if (format_.has_zeros) return field(word + static_cast<uint32_t>(format_.zero_add) * ones);
  const uint8_t middle = static_cast<uint8_t>(1 << (format_.bits - 1)), found = field(word);
  if (found == middle || found + 1 == middle) return middle;
  return bad_value("qzeros", at,
                   "zero points of " + std::to_string(middle - 1) + " or " +
                       std::to_string(middle) + ", since sym is true",
                   std::to_string(found));
}

Status QuantizedMatrix::read(int32_t begin, int32_t n, uint8_t* codes, float* scale,
                             uint8_t* zero) const {
  const int64_t of_word = 32 / format_.bits, k_words = ceil_div(n_in_, of_word),
                out_words = n_out_ / of_word, groups = kind_.n_groups;
  // AutoRound writes negative scales.
  const bool may_be_negative = format_.layout != Layout::kInt8 && format_.layout != Layout::kFloat8;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = begin + i;
    uint8_t* const to = codes + i * n_in_;
    switch (format_.layout) {
      case Layout::kInt8:
        for (int64_t k = 0; k < n_in_; ++k)
          to[k] = static_cast<uint8_t>(number_at<uint8_t>(*codes_, row * n_in_ + k) ^ 0x80);
        break;
      case Layout::kFloat8:
        for (int64_t k = 0; k < n_in_; ++k) {
          to[k] = number_at<uint8_t>(*codes_, row * n_in_ + k);
          if ((to[k] & 0x7f) == 0x7f)
            return bad_value("weight", row * n_in_ + k, "a number", "a NaN");
        }
        break;
      case Layout::kPacked:
        read_fields(*codes_, row * k_words, 1, n_in_, format_.bits, to);
        break;
      case Layout::kGptq:
        read_fields(*codes_, row, n_out_, n_in_, format_.bits, to);
        break;
      case Layout::kAwq: {
        const int64_t word = awq_place(row) / of_word, field = awq_place(row) % of_word;
        for (int64_t k = 0; k < n_in_; ++k)
          to[k] = field_of(number_at<uint32_t>(*codes_, k * out_words + word), field, format_.bits);
        break;
      }
    }
    for (int64_t g = 0; g < groups; ++g) {
      int64_t place = row * groups + g;
      if (format_.layout == Layout::kGptq || format_.layout == Layout::kAwq) {
        place = g * n_out_ + row;
      } else if (format_.scales == Scales::kTensor) {
        place = 0;
      } else if (format_.scales == Scales::kBlock) {
        place = row / format_.block_rows * groups + g;
      }
      const float value = float_at(*scales_, place);
      // The kernels multiply scales of FP8 by 256.
      const bool is_good = std::isfinite(value * (format_.layout == Layout::kFloat8 ? 256 : 1)) &&
                           (value > 0 || (may_be_negative && value < 0));
      if (!is_good) {
        return bad_value(scale_name_, place,
                         may_be_negative ? "a scale other than 0" : "a scale above 0",
                         float_text(value));
      }
      scale[i * groups + g] = value;
      if (zeros_ == nullptr) continue;
      switch (format_.layout) {
        case Layout::kInt8:
        case Layout::kFloat8:
          break;
        case Layout::kPacked:
          zero[i * groups + g] =
              field_at(*zeros_, row / of_word * groups + g, row % of_word, format_.bits);
          break;
        case Layout::kGptq: {
          SPECD_TRY(zero[i * groups + g], gptq_zero(row, g));
          break;
        }
        case Layout::kAwq:
          zero[i * groups + g] = field_at(*zeros_, g * out_words, awq_place(row), format_.bits);
          break;
      }
    }
  }
  return Status();
}

// Rows are decoded a few at a time: all of a matrix would take as much memory again.
Status QuantizedMatrix::pack(Device& device, int32_t begin, int32_t n, int32_t k,
                             const kernels::PackedMatrix& into, int32_t column) const {
  constexpr int32_t kRows = 256;
  const size_t n_groups = to_size(into.order->n_groups);
  std::vector<uint8_t> codes(kRows * to_size(n_in_)), zeros(kRows * n_groups);
  std::vector<float> scales(kRows * n_groups);
  for (int32_t done = 0; done < n; done += kRows) {
    const int32_t rows = std::min(kRows, n - done);
    SPECD_OK_OR_RETURN(read(begin + done, rows, codes.data(), scales.data(), zeros.data()));
    device.ops().pack(device.stream(), {.packed = into,
                                        .source = codes.data() + k,
                                        .source_stride = n_in_,
                                        .n_rows = rows,
                                        .column_begin = column + done,
                                        .scale = scales.data(),
                                        .zero = zeros.data()});
  }
  return Status();
}

Result<std::pair<int32_t, int32_t>> QuantizedMatrix::shape_of(const Checkpoint& checkpoint,
                                                              const std::string& module,
                                                              const MatrixFormat& format) {
  const bool is_packed = format.layout == Layout::kPacked;
  const std::string name = codes_name(module, format);
  const auto found = checkpoint.tensors().find(name);
  if (found == checkpoint.tensors().end()) {
    return Status(Code::kDataLoss,
                  checkpoint.place_of_missing(name) + ": missing; expected by " + format.place);
  }
  const std::vector<int64_t>& shape = found->second.view->shape;
  const auto wrong = [&](const std::string& expected) {
    return Status(Code::kDataLoss, quote(checkpoint.path_of(name), 400) + ", tensor " +
                                       quote(name) + ": shape " + shape_text(shape) +
                                       ", expected " + expected);
  };
  if (shape.size() != 2) return wrong("two dimensions");
  constexpr int64_t kOutputsMax = std::numeric_limits<int32_t>::max();
  const int64_t rows = shape[0], columns = shape[1], of_word = 32 / format.bits;
  const bool is_possible = std::max(rows, columns) <= kOutputsMax;  // so products do not overflow
  int64_t n_out = rows, n_in = columns;
  if (is_possible && is_packed) {
    n_in = columns * of_word;
    // The last word may have fewer codes. open() refuses a size that does not fit the words.
    const auto sizes = checkpoint.tensors().find(module + ".weight_shape");
    const TensorView* const view =
        sizes == checkpoint.tensors().end() ? nullptr : sizes->second.view;
    if (view != nullptr && (view->type == TensorType::kI64 || view->type == TensorType::kI32) &&
        view->shape == std::vector<int64_t>{2}) {
      const int64_t said = integer_at(*view, 1);
      if (said > n_in - of_word && said < n_in) n_in = said;
    }
  }
  if (is_possible && format.layout == Layout::kGptq)
    std::tie(n_out, n_in) = std::pair(columns, rows * of_word);
  if (is_possible && format.layout == Layout::kAwq)
    std::tie(n_out, n_in) = std::pair(columns * of_word, rows);
  if (n_out < 1 || n_in < 1 || n_out > kOutputsMax || n_in > kInputsMax)
    return wrong("1 to 2^31 - 1 outputs and 1 to 2^18 inputs");
  return std::pair(static_cast<int32_t>(n_out), static_cast<int32_t>(n_in));
}

}  // namespace specd
