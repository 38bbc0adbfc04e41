// float16 for the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half x) { return x.bits; }

inline float __half2float(__half x) {
  // Exact for every finite value, subnormal ones included: only the exponents' biases differ.
  const uint32_t size = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  const uint32_t bits = size >= 0x7c00
                            ? 0x7f800000u | (size & 0x3ffu) << 13
                            : std::bit_cast<uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112f);
  return std::bit_cast<float>(sign | bits);
}

// To nearest, ties to even.
inline __half __float2half_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16 & 0x8000);
  const float size = std::fabs(x);
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (size == 0) return {sign};  // frexp() has no exponent for it
  int exponent = 0;
  (void)std::frexp(size, &exponent);                           // size = m 2^exponent, 0.5 <= m < 1
  const int unit = exponent - 11 > -24 ? exponent - 11 : -24;  // of the last bit
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -unit)));
  // A mantissa of 2048 units carries into the exponent by itself.
  return {static_cast<uint16_t>(sign | (static_cast<uint32_t>(unit + 24) * 1024 + units))};
}
