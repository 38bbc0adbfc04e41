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

// Stores sixteen values in the cache's type, `stride` elements apart.
void append16(const float* from, DType type, void* to, size_t index, size_t stride) {
  if (type == DType::kF32) {
    float* p = static_cast<float*>(to) + index;
    for (int i = 0; i < 16; ++i) p[i * stride] = from[i];
    return;
  }
  uint16_t narrow[16];
  if (type == DType::kF16) {
    narrow16_f16(narrow, load(from));
  } else {
    narrow16_bf16(narrow, load(from));
  }
  uint16_t* p = static_cast<uint16_t*>(to) + index;
  for (int i = 0; i < 16; ++i) p[i * stride] = narrow[i];
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
      for (size_t d = 0; d < d_head; d += 16) {
        append16(k + d, a.kv.dtype, a.kv.k, base + d * kPageTokens + offset, kPageTokens);
        append16(v + d, a.kv.dtype, a.kv.v, base + offset * d_head + d, 1);
      }
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
