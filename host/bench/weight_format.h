// The formats in which a ballast has its linear layers, and how weights are rounded to them: as
// sdk/zoo/recipe/quantize.py does, to the bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/model/model_config.h"
#include "core/model/safetensors.h"

namespace specd::host {

enum class WeightFormat {
  kOwn,    // the model's: BF16, F16 or F32
  kInt8,   // compressed-tensors int-quantized: a scale per output, inputs rounded per token
  kInt4,   // pack-quantized: a scale per group of inputs, symmetric
  kFloat8  // float-quantized, E4M3: a scale per output, inputs rounded per token
};

struct NewTensor {
  std::string name;
  TensorType type;
  std::vector<int64_t> shape;

  uint64_t bytes() const;
};

struct WeightRounding {
  WeightFormat format = WeightFormat::kOwn;
  TensorType own = TensorType::kBF16;  // type of the model's weights
  int32_t group = 0;  // of kInt4: neighboring inputs of an output that share a scale

  // With kInt4 groups of 128, or of 64 where the model's widths are no multiples of 128. kUnsupported with
  // the key of config.json when the model has a width that the format does not allow.
  static Result<WeightRounding> make(WeightFormat format, TensorType own, const ModelConfig& config,
                                     const std::string& config_path);

  bool is_own() const { return format == WeightFormat::kOwn; }
  // The largest n_in of a matrix, and what it must be a multiple of.
  int32_t inputs_max() const;
  int32_t inputs_step() const { return format == WeightFormat::kInt4 ? group : 1; }
  TensorType scale_type() const {
    return own == TensorType::kBF16 ? TensorType::kBF16 : TensorType::kF32;
  }

  // What stands for a matrix in the file: its codes (the weights themselves with kOwn), then, unless kOwn,
  // its scales and with kInt4 its shape.
  std::vector<NewTensor> tensors(const std::string& module, int64_t n_out, int64_t n_in) const;
  uint64_t bytes(int64_t n_out, int64_t n_in) const;  // of these

  // Rounds finite weights that share a scale to codes, a byte each: two's complement, E4M3, or 0 to 15 with
  // 8 for zero. Returns the scale, exact in scale_type(). REQUIRES not kOwn.
  float round(std::span<const float> weights, uint8_t* codes) const;
  uint8_t zero_code() const { return format == WeightFormat::kInt4 ? 8 : 0; }

  Json quantization_config() const;  // of config.json; null with kOwn
};

// "int8", "int4" and "fp8", and "" of kOwn.
const char* weight_format_name(WeightFormat format);
// Not kOwn: kInvalidArgument naming `option`.
Result<WeightFormat> parse_weight_format(const std::string& option, std::string_view word);

}  // namespace specd::host
