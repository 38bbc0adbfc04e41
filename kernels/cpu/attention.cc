// Attention over pages, one (row, kv head) at a time: its query heads share each widened K and V.
//
// Masked positions are skipped altogether, so the content of their slots is never used. They lie
// after the row's own position (at the end of its last block) or before its window (at the start of
// its first block).
#include "specd/kernels/attention.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/math.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// One block of positions: the location of its K and V.
struct Block {
  int32_t slot[kPageTokens];  // slots of the visible positions
  int hidden;                 // positions before the window
  int visible;                // hidden + 1..16: positions up to the row's own
  bool whole_page;            // consecutive slots from the start of a page
};

// The first position that a row sees.
int32_t window_begin(const AttentionArgs& a, int64_t row) {
  const int32_t begin = a.position[row] - a.window + 1;
  return a.window > 0 && begin > 0 ? begin : 0;
}

Block block_at(const AttentionArgs& a, int64_t row, int32_t first) {
  Block b;
  const int32_t last = a.position[row];
  const int32_t begin = window_begin(a, row);
  b.hidden = begin > first ? begin - first : 0;
  const int32_t span = a.span[row];
  b.visible = last - first + 1 < kPageTokens ? last - first + 1 : kPageTokens;
  b.whole_page = first + b.visible <= span;
  if (first < span) {
    const int32_t page = a.pages[a.table[row] + first / kPageTokens];
    for (int j = 0; j < b.visible; ++j) b.slot[j] = page * kPageTokens + j;
  }
  for (int j = 0; j < b.visible; ++j) {
    if (first + j >= span) b.slot[j] = a.tail[a.tail_begin[row] + first + j - span];
  }
  return b;
}

template <KvDType kType>
SPECD_INLINE float widen1(const void* data, size_t index) {
  if constexpr (kType == KvDType::kF32) return static_cast<const float*>(data)[index];
  if constexpr (kType == KvDType::kF16) return widen_f16(static_cast<const uint16_t*>(data)[index]);
  if constexpr (kType == KvDType::kBF16) {
    return widen_bf16(static_cast<const uint16_t*>(data)[index]);
  }
  if constexpr (kType == KvDType::kF8E4M3)
    return widen_f8(static_cast<const uint8_t*>(data)[index]);
  if constexpr (kType == KvDType::kInt8) return static_cast<const int8_t*>(data)[index];
}

template <KvDType kType>
SPECD_INLINE F32x16 widen16_kv(const void* p) {
  if constexpr (kType == KvDType::kF32) return widen16<DType::kF32>(p);
  if constexpr (kType == KvDType::kF16) return widen16<DType::kF16>(p);
  if constexpr (kType == KvDType::kBF16) return widen16<DType::kBF16>(p);
  if constexpr (kType == KvDType::kF8E4M3) return widen16_f8(static_cast<const uint8_t*>(p));
  if constexpr (kType == KvDType::kInt8) return widen16_i8(static_cast<const int8_t*>(p));
}

// The row scales of a block's visible positions in kv head g; other lanes are 0.
SPECD_INLINE F32x16 row_scales(const KvLayer& kv, const float* scales, const Block& b, int32_t g) {
  float lanes[kPageTokens] = {};
  for (int j = b.hidden; j < b.visible; ++j) {
    lanes[j] = scales[static_cast<size_t>(b.slot[j] / kPageTokens) * kv.scale_stride +
                      static_cast<size_t>(g * kPageTokens + b.slot[j] % kPageTokens)];
  }
  return load(lanes);
}

// Query heads [head, head + kHeads), all of kv head g.
template <KvDType kType, int kHeads>
void heads_of(const AttentionArgs& a, int64_t row, int32_t g, int32_t head) {
  constexpr size_t kBytes = kv_dtype_bytes(kType);
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  const size_t groups = static_cast<size_t>(a.kv.n_kv_heads);
  const size_t slab = d_head * kPageTokens;  // elements of one page and kv head
  const size_t stride = a.kv.page_stride;
  const float* q =
      a.qkv + row * static_cast<int64_t>((a.n_heads + 2 * groups) * d_head) + head * d_head;
  float* out = a.out + (row * a.n_heads + head) * static_cast<int64_t>(d_head);
  const char* k_data = static_cast<const char*>(a.kv.k);
  const char* v_data = static_cast<const char*>(a.kv.v);
  alignas(64) float lane_index[16];
  for (int i = 0; i < 16; ++i) lane_index[i] = static_cast<float>(i);

  float m[kHeads];
  float l[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    m[h] = -__builtin_inff();
    l[h] = 0.0f;
    for (size_t d = 0; d < d_head; ++d) out[h * d_head + d] = 0.0f;
  }
  const int32_t begin = window_begin(a, row) / kPageTokens * kPageTokens;
  for (int32_t first = begin; first <= a.position[row]; first += kPageTokens) {
    const Block b = block_at(a, row, first);

    F32x16 score[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) score[h] = set1(0.0f);
    if (b.whole_page) {
      const char* k =
          k_data + (static_cast<size_t>(b.slot[0] / kPageTokens) * stride + g * slab) * kBytes;
      for (size_t d = 0; d < d_head; ++d) {
        const F32x16 keys = widen16_kv<kType>(k + d * kPageTokens * kBytes);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) score[h] = fma(set1(q[h * d_head + d]), keys, score[h]);
      }
    } else {
      size_t at[kPageTokens];
      for (int j = 0; j < b.visible; ++j) {
        at[j] = static_cast<size_t>(b.slot[j] / kPageTokens) * stride + g * slab +
                static_cast<size_t>(b.slot[j] % kPageTokens);
      }
      alignas(64) float gathered[16] = {};
      for (size_t d = 0; d < d_head; ++d) {
        for (int j = 0; j < b.visible; ++j) {
          gathered[j] = widen1<kType>(k_data, at[j] + d * kPageTokens);
        }
        const F32x16 keys = load(gathered);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) score[h] = fma(set1(q[h * d_head + d]), keys, score[h]);
      }
    }

    // In lanes [hidden, visible) the factors have opposite signs, so the top bit of the product
    // is set.
    const F32x16 lane = load(lane_index);
    const I32x16 seen = as_int(mul(sub(lane, set1(static_cast<float>(b.visible))),
                                   sub(lane, set1(static_cast<float>(b.hidden) - 0.5f))));
    F32x16 key_scale = set1(a.scale), value_scale = set1(1.0f);
    if constexpr (kType == KvDType::kF8E4M3) key_scale = set1(a.scale * a.kv.k_scale);
    if constexpr (kType == KvDType::kInt8) {
      key_scale = mul(set1(a.scale), row_scales(a.kv, a.kv.k_row_scale, b, g));
      value_scale = row_scales(a.kv, a.kv.v_row_scale, b, g);
    }
    alignas(64) float p[kHeads][16];
    float c[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 scaled = select(seen, mul(score[h], key_scale), set1(-__builtin_inff()));
      const float block_max = tree_max(scaled);
      const float m_new = m[h] > block_max ? m[h] : block_max;
      const F32x16 e = select(seen, exp(sub(scaled, set1(m_new))), set1(0.0f));
      store(p[h], kType == KvDType::kInt8 ? mul(e, value_scale) : e);
      alignas(64) float factor[16];
      store(factor, exp(set1(m[h] - m_new)));
      c[h] = factor[0];
      l[h] = fma1(l[h], c[h], tree_sum(e));
      m[h] = m_new;
    }

    size_t v_at[kPageTokens];
    for (int j = 0; j < b.visible; ++j) {
      v_at[j] = (static_cast<size_t>(b.slot[j] / kPageTokens) * stride + g * slab +
                 static_cast<size_t>(b.slot[j] % kPageTokens) * d_head) *
                kBytes;
    }
    for (size_t d = 0; d < d_head; d += 16) {
      F32x16 acc[kHeads];
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) acc[h] = mul(load(out + h * d_head + d), set1(c[h]));
      for (int j = b.hidden; j < b.visible; ++j) {
        const F32x16 values = widen16_kv<kType>(v_data + v_at[j] + d * kBytes);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) acc[h] = fma(set1(p[h][j]), values, acc[h]);
      }
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) store(out + h * d_head + d, acc[h]);
    }
  }
  if (a.position[row] < 0) return;
  for (int h = 0; h < kHeads; ++h) {
    for (size_t d = 0; d < d_head; d += 16) {
      float* o = out + h * d_head + d;
      const F32x16 mean = div(load(o), set1(l[h]));
      store(o, kType == KvDType::kF8E4M3 ? mul(mean, set1(a.kv.v_scale)) : mean);
    }
  }
}

template <KvDType kType>
void attention_of(const AttentionArgs& a, int part, int parts) {
  const int64_t groups = a.kv.n_kv_heads;
  const int32_t heads = a.n_heads / a.kv.n_kv_heads;  // query heads per kv head
  // Round-robin: in a prefill later rows see more positions.
  for (int64_t unit = part; unit < a.n_rows * groups; unit += parts) {
    const int64_t row = unit / groups;
    const int32_t g = static_cast<int32_t>(unit % groups);
    for (int32_t h = 0; h < heads;) {
      const int32_t head = g * heads + h;
      const int32_t left = heads - h;
      if (left >= 4) {
        heads_of<kType, 4>(a, row, g, head);
        h += 4;
      } else if (left == 3) {
        heads_of<kType, 3>(a, row, g, head);
        h += 3;
      } else if (left == 2) {
        heads_of<kType, 2>(a, row, g, head);
        h += 2;
      } else {
        heads_of<kType, 1>(a, row, g, head);
        h += 1;
      }
    }
  }
}

}  // namespace

void attention(const AttentionArgs& a, int part, int parts) {
  switch (a.kv.dtype) {
    case KvDType::kF32:
      return attention_of<KvDType::kF32>(a, part, parts);
    case KvDType::kF16:
      return attention_of<KvDType::kF16>(a, part, parts);
    case KvDType::kBF16:
      return attention_of<KvDType::kBF16>(a, part, parts);
    case KvDType::kF8E4M3:
      return attention_of<KvDType::kF8E4M3>(a, part, parts);
    case KvDType::kInt8:
      return attention_of<KvDType::kInt8>(a, part, parts);
  }
}

}  // namespace specd::kernels::SPECD_ISA
