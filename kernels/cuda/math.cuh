// exp, log, the noise and the narrow types, with the same operations as kernels/cpu/math.h,
// kernels/cpu/draw.cc and kernels/cpu/lanes.h. The bits are therefore equal, except for the payload
// of a NaN. Every rounding is explicit, because nvcc may otherwise fuse operations.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "specd/kernels/draw.h"
#include "specd/kernels/types.h"

namespace specd::kernels::cuda {

__device__ inline float exp_strict(float x) {
  // Like max and min on the CPU: NaN survives.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifter = 12582912.0f;
  const float shifted = __fmaf_rn(x, 1.44269504f, shifter);
  const float n = __fsub_rn(shifted, shifter);
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040.0f;
  p = __fmaf_rn(p, r, 1.0f / 720.0f);
  p = __fmaf_rn(p, r, 1.0f / 120.0f);
  p = __fmaf_rn(p, r, 1.0f / 24.0f);
  p = __fmaf_rn(p, r, 1.0f / 6.0f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(__fmul_rn(r, r), p, r);
  p = __fadd_rn(p, 1.0f);
  const int n_int = __float_as_int(shifted) - __float_as_int(shifter);
  const int half = n_int >> 1;
  const int rest = n_int - half;
  p = __fmul_rn(p, __int_as_float((half + 127) << 23));
  return __fmul_rn(p, __int_as_float((rest + 127) << 23));
}

// For positive, normal, finite x.
__device__ inline float log_strict(float x) {
  const int bits = __float_as_int(x);
  const int exponent = (bits - 0x3f3504f3) >> 23;
  const float e = __int2float_rn(exponent);
  const float f = __fsub_rn(__int_as_float(bits - (exponent << 23)), 1.0f);
  const float z = __fmul_rn(f, f);
  float p = 7.0376836292e-2f;
  p = __fmaf_rn(p, f, -1.1514610310e-1f);
  p = __fmaf_rn(p, f, 1.1676998740e-1f);
  p = __fmaf_rn(p, f, -1.2420140846e-1f);
  p = __fmaf_rn(p, f, 1.4249322787e-1f);
  p = __fmaf_rn(p, f, -1.6668057665e-1f);
  p = __fmaf_rn(p, f, 2.0000714765e-1f);
  p = __fmaf_rn(p, f, -2.4999993993e-1f);
  p = __fmaf_rn(p, f, 3.3333331174e-1f);
  float y = __fmul_rn(__fmul_rn(p, f), z);
  y = __fmaf_rn(e, -2.12194440e-4f, y);
  y = __fmaf_rn(z, -0.5f, y);
  return __fmaf_rn(e, 0.693359375f, __fadd_rn(f, y));
}

// Each of four values as two bfloat16, as a lane's part of B of mma(): {high 0..1, high 2..3, low 0..1, low
// 2..3}.
__device__ inline uint4 split_bfloat16(const float4& value) {
  const auto rest = [](float whole, float high) {
    // An infinite value, or one that became infinite, leaves no remainder.
    return isinf(high) ? 0.0f : __fsub_rn(whole, high);
  };
  const auto rests = [&](float first, float second, uint32_t high) {
    return bfloat16_pair(rest(first, __uint_as_float(high << 16)),
                         rest(second, __uint_as_float(high & 0xffff0000u)));
  };
  const uint32_t high0 = bfloat16_pair(value.x, value.y), high1 = bfloat16_pair(value.z, value.w);
  return make_uint4(high0, high1, rests(value.x, value.y, high0), rests(value.z, value.w, high1));
}

__device__ inline void philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                              uint32_t out[4]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a_high = __umulhi(0xD2511F53u, c0), a_low = 0xD2511F53u * c0;
    const uint32_t b_high = __umulhi(0xCD9E8D57u, c2), b_low = 0xCD9E8D57u * c2;
    c0 = b_high ^ c1 ^ k0;
    c2 = a_high ^ c3 ^ k1;
    c1 = b_low;
    c3 = a_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

__device__ inline float noise_of(uint32_t x) {
  const bool high = (x >> 31) != 0;
  const int nearer = static_cast<int>(high ? ~x : x);
  const float f = __fmul_rn(__fadd_rn(__int2float_rn(nearer), 0.5f), 0x1p-32f);
  const float u = __fsub_rn(1.0f, f);
  const float lost = __fdiv_rn(__fsub_rn(__fsub_rn(1.0f, u), f), u);
  const float log_u = log_strict(high ? f : u);
  const float exponential = __fsub_rn(0.0f, high ? log_u : __fadd_rn(log_u, lost));
  return __fsub_rn(0.0f, log_strict(exponential));
}

template <DType kType>
__device__ inline float widen(const void* data, size_t index) {
  if constexpr (kType == DType::kF32) return static_cast<const float*>(data)[index];
  if constexpr (kType == DType::kF16) {
    return __half2float(__ushort_as_half(static_cast<const uint16_t*>(data)[index]));
  }
  if constexpr (kType == DType::kBF16) {
    return __uint_as_float(uint32_t{static_cast<const uint16_t*>(data)[index]} << 16);
  }
}

template <DType kType>
__device__ inline void narrow(void* data, size_t index, float x) {
  if constexpr (kType == DType::kF32) static_cast<float*>(data)[index] = x;
  if constexpr (kType == DType::kF16) {
    static_cast<uint16_t*>(data)[index] = __half_as_ushort(__float2half_rn(x));
  }
  if constexpr (kType == DType::kBF16) {
    static_cast<uint16_t*>(data)[index] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
}

// E4M3FN, read through float16: the bits of exponent and mantissa, moved by seven, are the value / 256
// there.
__device__ inline float widen_f8(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  if ((x & 0x7fu) == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
  const auto half = static_cast<uint16_t>((x & 0x80u) << 8 | (x & 0x7fu) << 7);
  return __fmul_rn(__half2float(__ushort_as_half(half)), 256.0f);
}

// Rounded to nearest even; beyond 448, the largest value, it is 448.
__device__ inline uint8_t narrow_f8(float x) {
  const uint32_t bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t code = 0;
  if (magnitude > 0x7f800000u) {
    code = 0x7fu;
  } else if (magnitude >= 0x43e00000u) {  // 448
    code = 0x7eu;
  } else if (magnitude < 0x3c800000u) {  // below 2^-6: adding 2^14 rounds to multiples of 2^-9
    code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0x1p14f)) - 0x46800000u;
  } else {
    code = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  }
  return static_cast<uint8_t>(sign | code);
}

// A number of the cache, or its code.
template <KvDType kType>
__device__ inline float widen(const void* data, size_t index) {
  if constexpr (kType == KvDType::kF32) return widen<DType::kF32>(data, index);
  if constexpr (kType == KvDType::kF16) return widen<DType::kF16>(data, index);
  if constexpr (kType == KvDType::kBF16) return widen<DType::kBF16>(data, index);
  if constexpr (kType == KvDType::kF8E4M3) {
    return widen_f8(static_cast<const uint8_t*>(data)[index]);
  }
  if constexpr (kType == KvDType::kInt8) {
    return __int2float_rn(static_cast<const int8_t*>(data)[index]);
  }
}

// Calls fn.template operator()<kType>() with the type as a constant.
template <typename Fn>
void with_type(DType type, Fn&& fn) {
  switch (type) {
    case DType::kF32:
      return fn.template operator()<DType::kF32>();
    case DType::kF16:
      return fn.template operator()<DType::kF16>();
    case DType::kBF16:
      return fn.template operator()<DType::kBF16>();
  }
}
template <typename Fn>
void with_type(KvDType type, Fn&& fn) {
  switch (type) {
    case KvDType::kF32:
      return fn.template operator()<KvDType::kF32>();
    case KvDType::kF16:
      return fn.template operator()<KvDType::kF16>();
    case KvDType::kBF16:
      return fn.template operator()<KvDType::kBF16>();
    case KvDType::kF8E4M3:
      return fn.template operator()<KvDType::kF8E4M3>();
    case KvDType::kInt8:
      return fn.template operator()<KvDType::kInt8>();
  }
}

}  // namespace specd::kernels::cuda
