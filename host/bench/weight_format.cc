#include "host/bench/weight_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>

#include "core/base/quote.h"
#include "core/model/code_order.h"

namespace specd::host {
namespace {

constexpr float kInt8Max = 127, kFloat8Max = 448;
constexpr float kSmallestNormal = 0x1p-126f;
constexpr WeightFormat kQuantized[] = {WeightFormat::kInt8, WeightFormat::kInt4,
                                       WeightFormat::kFloat8};

// To nearest, ties to even. REQUIRES |x| < 2^22.
float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// A scale as it is stored; 1 where a normal number cannot scale what shares it.
float stored_scale(float scale, TensorType type) {
  if (scale < kSmallestNormal) return 1;
  if (type == TensorType::kF32) return scale;
  const auto bits = std::bit_cast<uint32_t>(scale);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF'0000);
}

uint8_t e4m3_of(float x) {
  const float size = std::min(std::abs(x), kFloat8Max);
  // Codes of [2^e, 2^(e + 1)) are 2^(e - 3) apart; below 2^-6 they stay 2^-9 apart.
  const int e = std::ilogb(std::max(size, 0x1p-6f));
  const int code = static_cast<int>(std::rint(std::ldexp(size, 3 - e))) + 8 * (e + 6);
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

// Of 21 scales, from the one that the largest weight asks for down to half of it, the one with the
// smallest sum of squared errors. `weights`: a multiple of 8.
float round_to_int4(std::span<const float> weights, float largest, TensorType scale_type,
                    uint8_t* codes) {
  constexpr size_t kLanes = 8;  // numpy's sums: their order decides between near scales
  const float full = largest / 7;
  float best_error = 0, best_scale = 0;
  const auto code_of = [](float steps) { return std::min(std::max(nearest(steps), -8.0f), 7.0f); };
  for (int fortieths = 40; fortieths >= 20 && full >= kSmallestNormal; --fortieths) {
    const float scale = stored_scale(full * (static_cast<float>(fortieths) / 40.0f), scale_type);
    // In units of the largest scale, so that squares neither overflow nor vanish.
    const float unit = scale / full;
    std::array<float, kLanes> sums{};
    for (size_t k = 0; k < weights.size(); k += kLanes) {
      for (size_t i = 0; i < kLanes; ++i) {
        const float steps = weights[k + i] / scale;
        const float error = (code_of(steps) - steps) * unit;
        sums[i] += error * error;
      }
    }
    const float error =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    if (best_scale != 0 && !(error < best_error)) continue;
    best_error = error;
    best_scale = scale;
  }
  if (best_scale == 0) best_scale = 1;
  for (size_t k = 0; k < weights.size(); ++k)
    codes[k] = static_cast<uint8_t>(code_of(weights[k] / best_scale) + 8);
  return best_scale;
}

}  // namespace

uint64_t NewTensor::bytes() const {
  uint64_t n = tensor_type_bytes(type);
  for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
  return n;
}

Result<WeightRounding> WeightRounding::make(WeightFormat format, TensorType own,
                                            const ModelConfig& config,
                                            const std::string& config_path) {
  WeightRounding made{.format = format, .own = own};
  const int32_t heads = config.n_heads * config.head_dim;
  const auto refuse = [&](const std::string& what, int32_t found, const std::string& expected) {
    return Status(Code::kUnsupported, config_path + ": " + what + ": found " +
                                          std::to_string(found) + ", expected " + expected +
                                          " with weights in " + weight_format_name(format));
  };
  if (format == WeightFormat::kInt4) {
    const bool is_wide = config.hidden_size % 128 == 0 && heads % 128 == 0;
    made.group = is_wide ? 128 : 64;
    if (config.hidden_size % made.group != 0)
      return refuse("key 'hidden_size'", config.hidden_size, "a multiple of 64");
    if (heads % made.group != 0)
      return refuse("num_attention_heads * head_dim", heads, "a multiple of 64");
  }
  const int32_t most = made.inputs_max();
  for (const auto& [what, n, limit] :
       {std::tuple{"key 'hidden_size'", config.hidden_size, most},
        std::tuple{"num_attention_heads * head_dim", heads, most},
        std::tuple{"key 'intermediate_size'", config.intermediate_size, most - 8}}) {  // it grows
    if (n > limit) return refuse(what, n, "at most " + std::to_string(limit));
  }
  return made;
}

int32_t WeightRounding::inputs_max() const {
  return format == WeightFormat::kInt8 ? kernels::kRun8Max : INT32_MAX;
}

std::vector<NewTensor> WeightRounding::tensors(const std::string& module, int64_t n_out,
                                               int64_t n_in) const {
  const std::string weight = module + ".weight";
  const NewTensor channel_scales{weight + "_scale", scale_type(), {n_out, 1}};
  switch (format) {
    case WeightFormat::kOwn:
      break;
    case WeightFormat::kInt8:
      return {{weight, TensorType::kI8, {n_out, n_in}}, channel_scales};
    case WeightFormat::kFloat8:
      return {{weight, TensorType::kF8E4M3, {n_out, n_in}}, channel_scales};
    case WeightFormat::kInt4:
      return {{weight + "_packed", TensorType::kI32, {n_out, n_in / 8}},
              {weight + "_scale", scale_type(), {n_out, n_in / group}},
              {weight + "_shape", TensorType::kI64, {2}}};
  }
  return {{weight, own, {n_out, n_in}}};
}

uint64_t WeightRounding::bytes(int64_t n_out, int64_t n_in) const {
  uint64_t bytes = 0;
  for (const NewTensor& each : tensors("", n_out, n_in)) bytes += each.bytes();
  return bytes;
}

float WeightRounding::round(std::span<const float> weights, uint8_t* codes) const {
  float largest = 0;
  for (const float each : weights) largest = std::max(largest, std::abs(each));
  if (format == WeightFormat::kInt4) return round_to_int4(weights, largest, scale_type(), codes);
  const bool is_float = format == WeightFormat::kFloat8;
  const float scale = stored_scale(largest / (is_float ? kFloat8Max : kInt8Max), scale_type());
  for (size_t k = 0; k < weights.size(); ++k) {
    const float steps = weights[k] / scale;
    codes[k] = is_float ? e4m3_of(steps)
                        : static_cast<uint8_t>(
                              static_cast<int8_t>(std::clamp(nearest(steps), -kInt8Max, kInt8Max)));
  }
  return scale;
}

// The keys that quantize.py writes.
Json WeightRounding::quantization_config() const {
  if (is_own()) return nullptr;
  const auto arguments = [](int bits, const char* type, const char* strategy, bool is_dynamic) {
    return Json{{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", is_dynamic},
                {"group_size", nullptr},
                {"num_bits", bits},
                {"observer", is_dynamic ? Json() : Json("minmax")},
                {"observer_kwargs", Json::object()},
                {"strategy", strategy},
                {"symmetric", true},
                {"type", type}};
  };
  Json weights, inputs;
  std::string layout = "pack-quantized";
  if (format == WeightFormat::kInt4) {
    weights = arguments(4, "int", "group", false);
    weights["group_size"] = group;
  } else {
    const char* const type = format == WeightFormat::kFloat8 ? "float" : "int";
    weights = arguments(8, type, "channel", false);
    inputs = arguments(8, type, "token", true);
    layout = std::string(type) + "-quantized";
  }
  const Json one{{"input_activations", inputs},
                 {"output_activations", nullptr},
                 {"targets", {"Linear"}},
                 {"weights", weights}};
  return {{"config_groups", {{"group_0", one}}}, {"format", layout},
          {"global_compression_ratio", nullptr}, {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr},          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kFloat8:
      return "fp8";
    case WeightFormat::kOwn:
      break;
  }
  return "";
}

Result<WeightFormat> parse_weight_format(const std::string& option, std::string_view word) {
  for (const WeightFormat each : kQuantized)
    if (word == weight_format_name(each)) return each;
  return Status(Code::kInvalidArgument,
                option + ": expected int8, int4 or fp8, found " + quote(word));
}

}  // namespace specd::host
