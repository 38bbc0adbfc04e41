// Numbers of a weights file, which may be unaligned, and their text for errors.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/base/to_size.h"
#include "core/model/safetensors.h"

namespace specd {

template <typename T>
T number_at(const TensorView& view, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(view.data) + to_size(index) * sizeof(T), sizeof(T));
  return value;
}

// `at` may be unaligned. REQUIRES kF32, kBF16 or kF16.
inline float float_value(TensorType type, const void* at) {
  if (type == TensorType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  if (type == TensorType::kBF16) return std::bit_cast<float>(uint32_t{half} << 16);
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * (mantissa == 0 ? INFINITY : NAN);
  return sign * std::ldexp(static_cast<float>(mantissa + (exponent == 0 ? 0 : 1024)),
                           std::max(exponent, 1) - 25);
}

// Of such a tensor.
inline float float_at(const TensorView& view, int64_t index) {
  const uint64_t offset = to_size(index) * tensor_type_bytes(view.type);
  return float_value(view.type, static_cast<const char*>(view.data) + offset);
}

// The shortest that is read back as the same float: "-2e-08".
inline std::string float_text(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

// Where a number is in a tensor: "[3, 0]"; "" for a scalar.
inline std::string place_in(const TensorView& view, int64_t index) {
  std::string text;
  for (size_t i = view.shape.size(); i-- > 0;) {
    text = std::to_string(index % view.shape[i]) + (text.empty() ? "" : ", ") + text;
    index /= view.shape[i];
  }
  return text.empty() ? "" : "[" + text + "]";
}

}  // namespace specd
