// Sixteen logical float32 lanes for every instruction set. An op is written once over F32x16 and
// compiled once per instruction set, so the bits agree by construction.
//
// Include only in files compiled per instruction set (SPECD_ISA_LEVEL 0 scalar, 1 AVX2, 2 AVX-512;
// SPECD_ISA is the namespace). Everything has internal linkage: the linker might keep a weak symbol
// from such an object for code that must run on any processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "specd/kernels/types.h"

#if SPECD_ISA_LEVEL > 0
#include <immintrin.h>
#endif

#define SPECD_INLINE static inline __attribute__((always_inline))

namespace specd::kernels::SPECD_ISA {

// Bits without <bit> or <cstring>, whose templates would be weak symbols when not inlined.
SPECD_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
SPECD_INLINE float from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

SPECD_INLINE size_t bytes_of(DType type) { return type == DType::kF32 ? 4 : 2; }

// Conversion of one value to and from the narrow types. Rounds to nearest even; NaNs become quiet
// and keep their upper bits, as in the processor's conversion.
SPECD_INLINE float widen_bf16(uint16_t x) { return from_bits(uint32_t{x} << 16); }
SPECD_INLINE uint16_t narrow_bf16(float x) {
  const uint32_t b = bits_of(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((b >> 16) | 0x40u);
  return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
SPECD_INLINE float widen_f16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  // Exact, also for subnormals: the bits read as a float32 are too small by a factor of 2^112.
  return from_bits(sign | bits_of(from_bits(magnitude << 13) * 0x1p112f));
}
SPECD_INLINE uint16_t narrow_f16(float x) {
  const uint32_t b = bits_of(x);
  const uint32_t sign = (b >> 16) & 0x8000u;
  const uint32_t magnitude = b & 0x7fffffffu;
  uint32_t h = 0;
  if (magnitude > 0x7f800000u) {
    h = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    h = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    h = bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    h = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | h);
}

// E4M3FN, read through float16: the bits of exponent and mantissa, moved by seven, are the value / 256
// there.
SPECD_INLINE float widen_f8(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  if ((x & 0x7fu) == 0x7fu) return from_bits(sign | 0x7fc00000u);
  return widen_f16(static_cast<uint16_t>((x & 0x80u) << 8 | (x & 0x7fu) << 7)) * 256.0f;
}
// Beyond 448, the largest value, it is 448.
SPECD_INLINE uint8_t narrow_f8(float x) {
  const uint32_t b = bits_of(x);
  const uint32_t sign = (b >> 24) & 0x80u;
  const uint32_t magnitude = b & 0x7fffffffu;
  uint32_t h = 0;
  if (magnitude > 0x7f800000u) {
    h = 0x7fu;
  } else if (magnitude >= 0x43e00000u) {  // 448
    h = 0x7eu;
  } else if (magnitude < 0x3c800000u) {  // below 2^-6: adding 2^14 rounds to multiples of 2^-9
    h = bits_of(from_bits(magnitude) + 0x1p14f) - bits_of(0x1p14f);
  } else {
    h = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  }
  return static_cast<uint8_t>(sign | h);
}

// Prefetches a cache line needed in a few microseconds into the second-level cache.
SPECD_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
// Prefetches a cache line needed within a microsecond into the first-level cache.
SPECD_INLINE void prefetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }

#if SPECD_ISA_LEVEL == 0
struct F32x16 {
  float v[16];
};
struct I32x16 {
  uint32_t v[16];
};
#define SPECD_EACH(type, expression)                  \
  type r;                                             \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

SPECD_INLINE F32x16 load(const float* p) {  // p may be unaligned, as for the vector loads
  F32x16 r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
SPECD_INLINE void store(float* p, const F32x16& a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
SPECD_INLINE F32x16 set1(float a) { SPECD_EACH(F32x16, a); }
SPECD_INLINE F32x16 add(const F32x16& a, const F32x16& b) { SPECD_EACH(F32x16, a.v[i] + b.v[i]); }
SPECD_INLINE F32x16 sub(const F32x16& a, const F32x16& b) { SPECD_EACH(F32x16, a.v[i] - b.v[i]); }
SPECD_INLINE F32x16 mul(const F32x16& a, const F32x16& b) { SPECD_EACH(F32x16, a.v[i] * b.v[i]); }
SPECD_INLINE F32x16 div(const F32x16& a, const F32x16& b) { SPECD_EACH(F32x16, a.v[i] / b.v[i]); }
// a * b + c, rounded once.
SPECD_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  SPECD_EACH(F32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
// a > b ? a : b and a < b ? a : b: returns b where either is NaN.
SPECD_INLINE F32x16 max(const F32x16& a, const F32x16& b) {
  SPECD_EACH(F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
SPECD_INLINE F32x16 min(const F32x16& a, const F32x16& b) {
  SPECD_EACH(F32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}
SPECD_INLINE I32x16 as_int(const F32x16& a) { SPECD_EACH(I32x16, bits_of(a.v[i])); }
SPECD_INLINE F32x16 as_float(const I32x16& a) { SPECD_EACH(F32x16, from_bits(a.v[i])); }
SPECD_INLINE I32x16 load_int(const uint32_t* p) { SPECD_EACH(I32x16, p[i]); }
SPECD_INLINE I32x16 set1_int(uint32_t a) { SPECD_EACH(I32x16, a); }
SPECD_INLINE I32x16 add(const I32x16& a, const I32x16& b) { SPECD_EACH(I32x16, a.v[i] + b.v[i]); }
SPECD_INLINE I32x16 sub(const I32x16& a, const I32x16& b) { SPECD_EACH(I32x16, a.v[i] - b.v[i]); }
SPECD_INLINE I32x16 mul(const I32x16& a, const I32x16& b) { SPECD_EACH(I32x16, a.v[i] * b.v[i]); }
SPECD_INLINE I32x16 widen_bytes(const uint8_t* p) { SPECD_EACH(I32x16, p[i]); }
SPECD_INLINE void store_int(int32_t* p, const I32x16& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
SPECD_INLINE I32x16 exclusive_or(const I32x16& a, const I32x16& b) {
  SPECD_EACH(I32x16, a.v[i] ^ b.v[i]);
}
template <int kBits>
SPECD_INLINE I32x16 shift_left(const I32x16& a) {
  SPECD_EACH(I32x16, a.v[i] << kBits);
}
// Arithmetic shift: copies of the sign bit enter from the left.
template <int kBits>
SPECD_INLINE I32x16 shift_right(const I32x16& a) {
  SPECD_EACH(I32x16, static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> kBits));
}
// From signed integers.
SPECD_INLINE F32x16 to_float(const I32x16& a) {
  SPECD_EACH(F32x16, static_cast<float>(static_cast<int32_t>(a.v[i])));
}
// Lane i of a where the top bit of mask's lane i is set, otherwise of b.
SPECD_INLINE F32x16 select(const I32x16& mask, const F32x16& a, const F32x16& b) {
  SPECD_EACH(F32x16, mask.v[i] >> 31 ? a.v[i] : b.v[i]);
}
SPECD_INLINE F32x16 widen16_bf16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  SPECD_EACH(F32x16, widen_bf16(h[i]));
}
SPECD_INLINE F32x16 widen16_f16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  SPECD_EACH(F32x16, widen_f16(h[i]));
}
SPECD_INLINE F32x16 widen16_f8(const uint8_t* p) { SPECD_EACH(F32x16, widen_f8(p[i])); }
SPECD_INLINE F32x16 widen16_i8(const int8_t* p) { SPECD_EACH(F32x16, static_cast<float>(p[i])); }
SPECD_INLINE void narrow16_f16(uint16_t* p, const F32x16& a) {
  for (int i = 0; i < 16; ++i) p[i] = narrow_f16(a.v[i]);
}
SPECD_INLINE float tree_sum(const F32x16& a) {
  float s[16];
  for (int i = 0; i < 16; ++i) s[i] = a.v[i];
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) s[i] = s[i] + s[i + stride];
  }
  return s[0];
}
SPECD_INLINE float tree_max(const F32x16& a) {
  float s[16];
  for (int i = 0; i < 16; ++i) s[i] = a.v[i];
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) s[i] = s[i] > s[i + stride] ? s[i] : s[i + stride];
  }
  return s[0];
}
SPECD_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#undef SPECD_EACH

#else  // code common to AVX2 and AVX-512

SPECD_INLINE float tree_sum(const __m256 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
  return _mm_cvtss_f32(s);
}
SPECD_INLINE float tree_max(const __m256 a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
  return _mm_cvtss_f32(s);
}
SPECD_INLINE float fma1(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
// Sixteen codes of E4M3FN as float16, divided by 256; NaN becomes 480 / 256.
SPECD_INLINE __m256i halves_of_f8(const uint8_t* p) {
  const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7f)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
  return _mm256_or_si256(magnitude, sign);
}
#endif

#if SPECD_ISA_LEVEL == 1
struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
SPECD_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SPECD_INLINE void store(float* p, const F32x16& a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
SPECD_INLINE F32x16 set1(float a) {
  const __m256 v = _mm256_set1_ps(a);
  return {v, v};
}
SPECD_INLINE F32x16 add(const F32x16& a, const F32x16& b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
SPECD_INLINE F32x16 sub(const F32x16& a, const F32x16& b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
SPECD_INLINE F32x16 mul(const F32x16& a, const F32x16& b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
SPECD_INLINE F32x16 div(const F32x16& a, const F32x16& b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
SPECD_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SPECD_INLINE F32x16 max(const F32x16& a, const F32x16& b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
SPECD_INLINE F32x16 min(const F32x16& a, const F32x16& b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
SPECD_INLINE I32x16 as_int(const F32x16& a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
SPECD_INLINE F32x16 as_float(const I32x16& a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
SPECD_INLINE I32x16 load_int(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
SPECD_INLINE I32x16 set1_int(uint32_t a) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(a));
  return {v, v};
}
SPECD_INLINE I32x16 add(const I32x16& a, const I32x16& b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
SPECD_INLINE I32x16 sub(const I32x16& a, const I32x16& b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
SPECD_INLINE I32x16 mul(const I32x16& a, const I32x16& b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
SPECD_INLINE I32x16 widen_bytes(const uint8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}
SPECD_INLINE void store_int(int32_t* p, const I32x16& a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
SPECD_INLINE I32x16 exclusive_or(const I32x16& a, const I32x16& b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int kBits>
SPECD_INLINE I32x16 shift_left(const I32x16& a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
SPECD_INLINE I32x16 shift_right(const I32x16& a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
SPECD_INLINE F32x16 to_float(const I32x16& a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
SPECD_INLINE F32x16 select(const I32x16& mask, const F32x16& a, const F32x16& b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(mask.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(mask.hi))};
}
SPECD_INLINE F32x16 widen16_bf16(const void* p) {
  const __m128i* h = static_cast<const __m128i*>(p);
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16)),
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)), 16))};
}
SPECD_INLINE F32x16 widen16_f16(const void* p) {
  const __m128i* h = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
// halves * 256, NaN beyond 448.
SPECD_INLINE __m256 value_of_f8(__m128i halves) {
  const __m256 x = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  return _mm256_or_ps(x, _mm256_cmp_ps(magnitude, _mm256_set1_ps(448.0f), _CMP_GT_OQ));
}
SPECD_INLINE F32x16 widen16_f8(const uint8_t* p) {
  const __m256i halves = halves_of_f8(p);
  return {value_of_f8(_mm256_castsi256_si128(halves)),
          value_of_f8(_mm256_extracti128_si256(halves, 1))};
}
SPECD_INLINE F32x16 widen16_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
SPECD_INLINE void narrow16_f16(uint16_t* p, const F32x16& a) {
  __m128i* h = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
SPECD_INLINE float tree_sum(const F32x16& a) { return tree_sum(_mm256_add_ps(a.lo, a.hi)); }
SPECD_INLINE float tree_max(const F32x16& a) { return tree_max(_mm256_max_ps(a.lo, a.hi)); }
#endif

#if SPECD_ISA_LEVEL == 2
struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
SPECD_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
SPECD_INLINE void store(float* p, const F32x16& a) { _mm512_storeu_ps(p, a.v); }
SPECD_INLINE F32x16 set1(float a) { return {_mm512_set1_ps(a)}; }
SPECD_INLINE F32x16 add(const F32x16& a, const F32x16& b) { return {_mm512_add_ps(a.v, b.v)}; }
SPECD_INLINE F32x16 sub(const F32x16& a, const F32x16& b) { return {_mm512_sub_ps(a.v, b.v)}; }
SPECD_INLINE F32x16 mul(const F32x16& a, const F32x16& b) { return {_mm512_mul_ps(a.v, b.v)}; }
SPECD_INLINE F32x16 div(const F32x16& a, const F32x16& b) { return {_mm512_div_ps(a.v, b.v)}; }
SPECD_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
SPECD_INLINE F32x16 max(const F32x16& a, const F32x16& b) { return {_mm512_max_ps(a.v, b.v)}; }
SPECD_INLINE F32x16 min(const F32x16& a, const F32x16& b) { return {_mm512_min_ps(a.v, b.v)}; }
SPECD_INLINE I32x16 as_int(const F32x16& a) { return {_mm512_castps_si512(a.v)}; }
SPECD_INLINE F32x16 as_float(const I32x16& a) { return {_mm512_castsi512_ps(a.v)}; }
SPECD_INLINE I32x16 load_int(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
SPECD_INLINE I32x16 set1_int(uint32_t a) { return {_mm512_set1_epi32(static_cast<int>(a))}; }
SPECD_INLINE I32x16 add(const I32x16& a, const I32x16& b) { return {_mm512_add_epi32(a.v, b.v)}; }
SPECD_INLINE I32x16 sub(const I32x16& a, const I32x16& b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SPECD_INLINE I32x16 mul(const I32x16& a, const I32x16& b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
SPECD_INLINE I32x16 widen_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
SPECD_INLINE void store_int(int32_t* p, const I32x16& a) { _mm512_storeu_si512(p, a.v); }
SPECD_INLINE I32x16 exclusive_or(const I32x16& a, const I32x16& b) {
  return {_mm512_xor_si512(a.v, b.v)};
}
template <int kBits>
SPECD_INLINE I32x16 shift_left(const I32x16& a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
SPECD_INLINE I32x16 shift_right(const I32x16& a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
SPECD_INLINE F32x16 to_float(const I32x16& a) { return {_mm512_cvtepi32_ps(a.v)}; }
SPECD_INLINE F32x16 select(const I32x16& mask, const F32x16& a, const F32x16& b) {
  return {_mm512_mask_blend_ps(_mm512_movepi32_mask(mask.v), b.v, a.v)};
}
SPECD_INLINE F32x16 widen16_bf16(const void* p) {
  const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
SPECD_INLINE F32x16 widen16_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
SPECD_INLINE F32x16 widen16_f8(const uint8_t* p) {
  const __m512 x = _mm512_mul_ps(_mm512_cvtph_ps(halves_of_f8(p)), _mm512_set1_ps(256.0f));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(448.0f), _CMP_GT_OQ);
  return {_mm512_mask_mov_ps(x, is_nan, _mm512_set1_ps(__builtin_nanf("")))};
}
SPECD_INLINE F32x16 widen16_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))};
}
SPECD_INLINE void narrow16_f16(uint16_t* p, const F32x16& a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
SPECD_INLINE float tree_sum(const F32x16& a) {
  return tree_sum(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
SPECD_INLINE float tree_max(const F32x16& a) {
  return tree_max(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
#endif

// Loads the first n of 16 lanes and zeroes the others; stores the first n.
SPECD_INLINE F32x16 load_first(const float* p, int n) {
  if (n >= 16) return load(p);
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
SPECD_INLINE void store_first(float* p, const F32x16& a, int n) {
  if (n >= 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

// Loads sixteen consecutive values of a type as float32; stores them back, rounded to nearest even.
template <DType kType>
SPECD_INLINE F32x16 widen16(const void* p) {
  if constexpr (kType == DType::kF32) {
#if SPECD_ISA_LEVEL == 0
    float lanes[16];  // mapped files may be unaligned
    __builtin_memcpy(lanes, p, sizeof(lanes));
    return load(lanes);
#else
    return load(static_cast<const float*>(p));
#endif
  }
  if constexpr (kType == DType::kF16) return widen16_f16(p);
  if constexpr (kType == DType::kBF16) return widen16_bf16(p);
}
SPECD_INLINE void narrow16_bf16(uint16_t* p, const F32x16& a) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; ++i) p[i] = narrow_bf16(lanes[i]);
}

}  // namespace specd::kernels::SPECD_ISA
