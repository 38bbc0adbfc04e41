// Rotary embedding and KV append.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "specd/kernels/attention.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// Rotates one head in place.
void rotate(float* x, const float* cos_sin, int32_t head_dim) {
  const int32_t half = head_dim / 2;  // a multiple of 8: the last lanes may be half a vector
  for (int32_t i = 0; i < half; i += 16) {
    const int n = half - i;
    const F32x16 a = load_first(x + i, n);
    const F32x16 b = load_first(x + half + i, n);
    const F32x16 c = load_first(cos_sin + i, n);
    const F32x16 s = load_first(cos_sin + half + i, n);
    store_first(x + i, fma(a, c, sub(set1(-0.0f), mul(b, s))), n);
    store_first(x + half + i, fma(b, c, mul(a, s)), n);
  }
}

// Stores sixteen elements `stride` apart.
template <typename T>
void scatter16(const T* from, void* to, size_t index, size_t stride) {
  T* const p = static_cast<T*>(to) + index;
  for (size_t i = 0; i < 16; ++i) p[i * stride] = from[i];
}

// How a row of an int8 cache becomes codes.
struct RowScale {
  float scale;    // of a code
  float inverse;  // code = round(x * inverse)
};
RowScale row_scale(const float* x, int32_t n) {
  uint32_t largest = 0;  // as bits, which order magnitudes and put infinities and NaNs last
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float m = from_bits(largest);
  if (largest >= 0x7f800000u) return {from_bits(0x7fc00000u), 0.0f};
  if (m < 0x1p-100f) return {0.0f, 0.0f};
  return {m / 127.0f, 127.0f / m};
}

// Stores a row of n numbers in the cache's type, `stride` elements apart. `scale`: of the layer, for
// kF8E4M3. `row_scale_at`: where the scale of the row goes, for kInt8.
void append_row(const float* from, int32_t n, KvDType type, float scale, float* row_scale_at,
                void* to, size_t index, size_t stride) {
  RowScale own = {1.0f, 1.0f};
  if (type == KvDType::kInt8) {
    own = row_scale(from, n);
    *row_scale_at = own.scale;
  }
  for (int32_t d = 0; d < n; d += 16, from += 16, index += 16 * stride) {
    if (type == KvDType::kF32) {
      scatter16(from, to, index, stride);
    } else if (type == KvDType::kF8E4M3) {
      uint8_t codes[16];
      for (int i = 0; i < 16; ++i) codes[i] = narrow_f8(from[i] / scale);
      scatter16(codes, to, index, stride);
    } else if (type == KvDType::kInt8) {
      int8_t codes[16];
      for (int i = 0; i < 16; ++i) {
        // Adding and subtracting 1.5 * 2^23 rounds to nearest even; its lower bits are the integer.
        const float scaled = own.inverse == 0.0f ? 0.0f : from[i] * own.inverse;
        codes[i] = static_cast<int8_t>(bits_of(scaled + 0x1.8p23f) - bits_of(0x1.8p23f));
      }
      scatter16(codes, to, index, stride);
    } else {
      uint16_t narrow[16];
      if (type == KvDType::kF16) {
        narrow16_f16(narrow, load(from));
      } else {
        narrow16_bf16(narrow, load(from));
      }
      scatter16(narrow, to, index, stride);
    }
  }
}

}  // namespace

void rope_append(const RopeAppendArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  const int32_t groups = a.kv.n_kv_heads;
  for (int64_t r = share.begin; r < share.end; ++r) {
    float* row = a.qkv + r * static_cast<int64_t>((a.n_heads + 2 * groups) * d_head);
    const float* cos_sin = a.cos_sin + r * static_cast<int64_t>(d_head);
    for (int32_t h = 0; h < a.n_heads + groups; ++h) {
      rotate(row + h * d_head, cos_sin, a.kv.head_dim);
    }
    if (a.slot[r] < 0) continue;
    const size_t page = static_cast<size_t>(a.slot[r] / kPageTokens);
    const size_t offset = static_cast<size_t>(a.slot[r] % kPageTokens);
    for (int32_t g = 0; g < groups; ++g) {
      const float* k = row + (a.n_heads + g) * d_head;
      const float* v = row + (a.n_heads + groups + g) * d_head;
      const size_t base = page * a.kv.page_stride + g * d_head * kPageTokens;
      float *k_row_scale = nullptr, *v_row_scale = nullptr;
      if (a.kv.dtype == KvDType::kInt8) {
        const size_t at = page * a.kv.scale_stride + static_cast<size_t>(g * kPageTokens) + offset;
        k_row_scale = a.kv.k_row_scale + at;
        v_row_scale = a.kv.v_row_scale + at;
      }
      append_row(k, a.kv.head_dim, a.kv.dtype, a.kv.k_scale, k_row_scale, a.kv.k, base + offset,
                 kPageTokens);
      append_row(v, a.kv.head_dim, a.kv.dtype, a.kv.v_scale, v_row_scale, a.kv.v,
                 base + offset * d_head, 1);
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
