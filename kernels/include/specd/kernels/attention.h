// Rotary embedding, KV append, attention over pages, KV compaction.
//
// The cache of one layer, in pages of kPageTokens tokens (P pages, G kv heads, D = head_dim):
//   k [P, G, D, kPageTokens]   (transposed: vector lanes are positions)
//   v [P, G, kPageTokens, D]
// and of kInt8 alone, in float32:
//   k_row_scale, v_row_scale [P, G, kPageTokens]
// The G blocks of a page are dense. Consecutive pages are page_stride elements apart, for K and
// for V, and scale_stride floats for the scales, so that pages of several layers and models can be
// interleaved. slot = page * kPageTokens + offset.
//
// A number of K (and of V in the same way) is stored as
//   kF32, kF16, kBF16   x, rounded to nearest even
//   kF8E4M3             x / k_scale as E4M3FN, rounded to nearest even; beyond 448 it is 448, NaN
//                       stays NaN
//   kInt8               a row of D numbers by its largest magnitude m alone: scale m / 127, code
//                       round(x * (127 / m)), to nearest even. A row with m < 2^-100 has scale 0
//                       and codes 0; one with an infinity or NaN has scale NaN and codes 0.
// and read as its value, or as its code, whose scale is multiplied later; see AttentionArgs.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

enum class KvDType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kInt8 };

constexpr size_t kv_dtype_bytes(KvDType type) {
  return type == KvDType::kF32 ? 4 : type == KvDType::kF16 || type == KvDType::kBF16 ? 2 : 1;
}

struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
  KvDType dtype = KvDType::kF32;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;          // a multiple of 16
  size_t page_stride = 0;        // in elements, >= n_kv_heads * head_dim * kPageTokens
  float* k_row_scale = nullptr;  // kInt8
  float* v_row_scale = nullptr;
  size_t scale_stride = 0;
  float k_scale = 1;  // kF8E4M3: > 0, of the layer
  float v_scale = 1;
};

// cos_sin[r] = {cos(a_i) * scale..., sin(a_i) * scale...}, a_i = float(position[r]) * inv_freq[i],
// i < head_dim / 2. Scalar libm on the host; once per forward.
struct RopeTableArgs {
  const int32_t* position = nullptr;  // [n_rows]
  const float* inv_freq = nullptr;    // [head_dim / 2]
  float* cos_sin = nullptr;           // [n_rows, head_dim]
  int32_t n_rows = 0;
  int32_t head_dim = 0;
  float scale = 1;  // YaRN's attention factor
};

// Rotates q (in place) and k, and writes k and v to their slots in the cache's type. Half-split
// rotation:
//   out[i]       = x[i]*cos - x[i+D/2]*sin    as fma(a, b, -(c*d))
//   out[i + D/2] = x[i+D/2]*cos + x[i]*sin    as fma(a, b, c*d)
struct RopeAppendArgs {
  float* qkv = nullptr;            // [n_rows, (H + 2 G) * D]: q heads, k heads, v heads
  const float* cos_sin = nullptr;  // [n_rows, D]
  const int32_t* slot = nullptr;   // [n_rows], distinct; -1 = this row's k and v are not kept
  KvLayer kv;
  int32_t n_rows = 0;
  int32_t n_heads = 0;
};

// Row r attends to the last `window` positions up to position[r], or to all of them when window is
// 0. Position p < span[r] is in the sequence's pages, in order:
//   slot = pages[table[r] + p / kPageTokens] * kPageTokens + p % kPageTokens
// Position span[r] + i (the ancestors of a tree row, and the row itself last) is in slot
// tail[tail_begin[r] + i].
//
// Strict: per head, blocks of kPageTokens absolute positions in increasing order. The score of a
// position is an fma chain over d in increasing order from zero, times `scale`; with a cache of
// kF8E4M3 times (scale * k_scale), of kInt8 times (scale * k_row_scale[j]). Per block:
//   m' = max(m, block max); c = exp(m - m')
//   p_j = exp(score_j - m'), 0 for positions that the row does not see
//   l = fma(l, c, tree sum of 16 p)
//   acc[d] = acc[d] * c, then fma(p_j, v_j[d], acc[d]) for j in increasing order; of kInt8 with
//            (p_j * v_row_scale[j]) for p_j
// out = acc / l, of kF8E4M3 times v_scale. The location of a row's K and V (page order, span or
// tail) never changes a bit.
struct AttentionArgs {
  const float* qkv = nullptr;  // as in RopeAppendArgs, q already rotated
  float* out = nullptr;        // [n_rows, n_heads * head_dim]
  KvLayer kv;
  const int32_t* position = nullptr;    // [n_rows]; -1 = the row sees nothing, out = 0
  const int32_t* span = nullptr;        // [n_rows], <= position + 1
  const int32_t* table = nullptr;       // [n_rows], offset into `pages`
  const int32_t* pages = nullptr;       // block tables of all sequences, concatenated
  const int32_t* tail_begin = nullptr;  // [n_rows], offset into `tail`
  const int32_t* tail = nullptr;        // slots
  int32_t n_rows = 0;
  int32_t n_heads = 0;
  int32_t window = 0;  // in positions, including the row's own; 0 = no window
  float scale = 0;
};

// Copies K and V of slot from[i], and their scales, to slot to[i], i in increasing order. No source may be the
// destination of an earlier copy; commit guarantees to[i] <= from[i] in sequence order.
struct KvMoveArgs {
  KvLayer kv;
  const int32_t* from = nullptr;  // [n]
  const int32_t* to = nullptr;    // [n]
  int32_t n = 0;
};

}  // namespace specd::kernels
