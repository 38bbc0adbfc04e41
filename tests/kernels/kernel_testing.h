// Shared by the kernel tests: data, independent exact conversions, and comparison by bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "specd/kernels/cpu.h"
#include "tests/kernels/code_cases.h"

namespace specd::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(engine);
  return values;
}

inline const char* dtype_name(DType type) {
  return type == DType::kF32 ? "f32" : type == DType::kF16 ? "f16" : "bf16";
}

// Exact values of the narrow types, by arithmetic on their fields.
inline float widen(uint16_t h, DType type) {
  const int exponent_bits = type == DType::kF16 ? 5 : 8;
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (h & 0x7fff) >> mantissa_bits;
  const int mantissa = h & ((1 << mantissa_bits) - 1);
  const float sign = (h & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? kNan : sign * std::numeric_limits<float>::infinity();
  }
  const int lead = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign * std::ldexp(static_cast<float>(lead + mantissa),
                           (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

// Rounds to nearest even, by search among all values of the type. For finite, in-range x.
inline uint16_t narrow(float x, DType type) {
  const uint16_t top = type == DType::kF16 ? 0x7bff : 0x7f7f;
  const float magnitude = std::fabs(x);
  uint16_t low = 0;
  uint16_t high = top;
  while (low < high) {  // the largest value not above |x|
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (widen(middle, type) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  uint16_t best = low;
  if (low < top) {
    const double down = double{magnitude} - widen(low, type);
    const double up = double{widen(static_cast<uint16_t>(low + 1), type)} - magnitude;
    if (up < down || (up == down && (low & 1) != 0)) best = static_cast<uint16_t>(low + 1);
  }
  return static_cast<uint16_t>(best | (std::signbit(x) ? 0x8000 : 0));
}

// Values stored as `type`; `widened` holds the stored values as float32.
struct Narrowed {
  std::vector<char> bytes;
  std::vector<float> widened;
};

inline Narrowed narrowed(const std::vector<float>& values, DType type) {
  Narrowed result;
  result.widened = values;
  result.bytes.resize(values.size() * dtype_bytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32) {
      std::memcpy(&result.bytes[i * 4], &values[i], 4);
      continue;
    }
    const uint16_t h = std::isnan(values[i]) ? uint16_t{0x7fff} : narrow(values[i], type);
    std::memcpy(&result.bytes[i * 2], &h, 2);
    result.widened[i] = widen(h, type);
  }
  return result;
}

inline constexpr KvDType kAllKv[] = {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kF8E4M3,
                                     KvDType::kInt8};

inline const char* dtype_name(KvDType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "f8e4m3", "int8"};
  return kNames[static_cast<int>(type)];
}

// The nearest code, of two equally near the even one, by search among all.
inline uint8_t narrow_f8(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7f;
  const double magnitude = std::min(std::fabs(double{x}), 1e3);  // the largest code is 448
  uint8_t best = 0x7e;
  for (int code = 0x7d; code >= 0; --code) {
    const double gain = std::fabs(magnitude - widen_f8(best)) -
                        std::fabs(magnitude - widen_f8(static_cast<uint8_t>(code)));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = static_cast<uint8_t>(code);
  }
  return sign | best;
}

// A row of numbers as codes of an int8 cache.
struct Int8Row {
  float scale = 0;
  std::vector<int8_t> codes;
};
inline Int8Row int8_row(const std::vector<float>& x) {
  float m = 0;
  bool is_finite = true;
  for (const float each : x) {
    is_finite = is_finite && std::isfinite(each);
    m = std::max(m, std::fabs(each));
  }
  Int8Row row{.scale = is_finite ? 0.0f : kNan, .codes = std::vector<int8_t>(x.size())};
  if (!is_finite || m < 0x1p-100f) return row;
  row.scale = m / 127.0f;
  const float inverse = 127.0f / m;
  for (size_t i = 0; i < x.size(); ++i) {
    row.codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  }
  return row;
}

// As above, for a cache. Of one in 8 bits, codes, and what they are without their scale.
inline Narrowed narrowed(const std::vector<float>& values, KvDType type) {
  if (type == KvDType::kF32) return narrowed(values, DType::kF32);
  if (type == KvDType::kF16) return narrowed(values, DType::kF16);
  if (type == KvDType::kBF16) return narrowed(values, DType::kBF16);
  Narrowed result;
  for (const float value : values) {
    if (type == KvDType::kF8E4M3) {
      const uint8_t code = narrow_f8(value);
      result.bytes.push_back(static_cast<char>(code));
      result.widened.push_back(widen_f8(code));
    } else {
      const float code = std::isnan(value) ? -128.0f : std::nearbyint(std::tanh(value) * 127.0f);
      result.bytes.push_back(static_cast<char>(static_cast<int8_t>(code)));
      result.widened.push_back(code);
    }
  }
  return result;
}

// The index of the first element whose bits differ, or -1.
inline int64_t first_difference(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}
inline int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  return first_difference(a.data(), b.data(), a.size());
}

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<char, AlignedFree>;
inline AlignedBytes aligned_bytes(size_t n) {
  return AlignedBytes(static_cast<char*>(std::aligned_alloc(64, (n + 63) / 64 * 64)));
}

// One suite per instruction set; skipped where the processor lacks it.
class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam())) {
      GTEST_SKIP() << "this processor has no " << isa_name(GetParam());
    }
  }
  const Ops& ops() const { return cpu_ops(GetParam()); }
};

inline std::string isa_param_name(const testing::TestParamInfo<Isa>& info) {
  return isa_name(info.param);
}

#define SPECD_FOR_EACH_ISA(suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512), \
                           isa_param_name)

}  // namespace specd::kernels
