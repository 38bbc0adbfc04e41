// bfloat16 for the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
