// Shared by the kernel tests: data, independent exact conversions, and comparison by bits.
#pragma once

#include <gtest/gtest.h>

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
