// Attention over pages, one kv head at a time. Its query heads share each widened K and V; so do four rows side by
// side (AVX-512; others fewer) in the pages that all of them see whole. With AVX-512 such pages, and those of a row alone,
// are taken two at a time.
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

// How many query heads have their accumulators in registers, and how many rows of `heads` each can share a page.
constexpr int kQueries = SPECD_ISA_LEVEL == 2 ? 16 : 4;
constexpr int shared_rows(int heads) { return kQueries / heads < 4 ? kQueries / heads : 4; }

// kHeads query heads of a row, all of one kv head, over the blocks so far.
template <int kHeads>
struct Query {
  const float* q;  // [kHeads, head_dim]
  float* out;      // the same, not yet divided by l
  float m[kHeads];
  float l[kHeads];
};

// A processor with AVX-512 adds products twice as fast as it loads factors. So it uses a factor twice, for two pages of K
// or two vectors of V, and as many rows share them as have their sums in registers.
constexpr int kTwice = SPECD_ISA_LEVEL == 2 ? 2 : 1;
template <int kHeads, int kRows, int kUses>
constexpr int kRowsAtOnce = kHeads* kRows* kUses <= 24 || kRows == 1 ? kRows : kRows / 2;

// score[page][query] = q k, of kPages whole pages.
template <KvDType kType, int kHeads, int kRows, int kPages>
SPECD_INLINE void scores_of_pages(const AttentionArgs& a, const Block* blocks, int32_t g,
                                  const Query<kHeads>* rows,
                                  F32x16 (&score)[kTwice][kHeads * kRows]) {
  constexpr size_t kBytes = kv_dtype_bytes(kType);
  constexpr int kN = kRowsAtOnce<kHeads, kRows, kPages>;
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  const char* k[kPages];
  for (int page = 0; page < kPages; ++page) {
    const size_t at = static_cast<size_t>(blocks[page].slot[0] / kPageTokens) * a.kv.page_stride +
                      static_cast<size_t>(g) * d_head * kPageTokens;
    k[page] = static_cast<const char*>(a.kv.k) + at * kBytes;
  }
  for (int first = 0; first < kRows; first += kN) {
    F32x16 sum[kN * kHeads][kPages];
#pragma GCC unroll 16
    for (int i = 0; i < kN * kHeads; ++i) {
#pragma GCC unroll 2
      for (int page = 0; page < kPages; ++page) sum[i][page] = set1(0.0f);
    }
    for (size_t d = 0; d < d_head; ++d) {
      F32x16 keys[kPages];
#pragma GCC unroll 2
      for (int page = 0; page < kPages; ++page)
        keys[page] = widen16_kv<kType>(k[page] + d * kPageTokens * kBytes);
#pragma GCC unroll 4
      for (int r = 0; r < kN; ++r) {
        const float* const q = rows[first + r].q + d;
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
          const F32x16 factor = set1(q[h * d_head]);
#pragma GCC unroll 2
          for (int page = 0; page < kPages; ++page) {
            F32x16& total = sum[r * kHeads + h][page];
            total = fma(factor, keys[page], total);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN * kHeads; ++i) {
#pragma GCC unroll 2
      for (int page = 0; page < kPages; ++page) score[page][first * kHeads + i] = sum[i][page];
    }
  }
}

// The same of positions that are not side by side in a page.
template <KvDType kType, int kHeads, int kRows>
SPECD_INLINE void scores_of_slots(const AttentionArgs& a, const Block& b, int32_t g,
                                  const Query<kHeads>* rows, F32x16 (&score)[kHeads * kRows]) {
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  size_t at[kPageTokens];
  for (int j = 0; j < b.visible; ++j) {
    at[j] = static_cast<size_t>(b.slot[j] / kPageTokens) * a.kv.page_stride +
            static_cast<size_t>(g) * d_head * kPageTokens +
            static_cast<size_t>(b.slot[j] % kPageTokens);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kHeads; ++i) score[i] = set1(0.0f);
  alignas(64) float gathered[16] = {};
  for (size_t d = 0; d < d_head; ++d) {
    for (int j = 0; j < b.visible; ++j)
      gathered[j] = widen1<kType>(a.kv.k, at[j] + d * kPageTokens);
    const F32x16 keys = load(gathered);
#pragma GCC unroll 16
    for (int i = 0; i < kRows * kHeads; ++i) {
      score[i] = fma(set1(rows[i / kHeads].q[i % kHeads * d_head + d]), keys, score[i]);
    }
  }
}

// out = out * c + sum of p * value, of kVectors vectors of V from d on.
template <KvDType kType, int kHeads, int kRows, int kVectors>
SPECD_INLINE void add_values(const Block& b, const char* const (&v)[kPageTokens], size_t d,
                             size_t d_head, const float (*p)[16], const float* c,
                             Query<kHeads>* rows) {
  constexpr size_t kBytes = kv_dtype_bytes(kType);
  constexpr int kN = kRowsAtOnce<kHeads, kRows, kVectors>;
  for (int first = 0; first < kRows; first += kN) {
    const float(*const factor)[16] = p + first * kHeads;
    F32x16 sum[kN * kHeads][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kN * kHeads; ++i) {
      const float* const out = rows[first + i / kHeads].out + i % kHeads * d_head + d;
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n)
        sum[i][n] = mul(load(out + n * 16), set1(c[first * kHeads + i]));
    }
    for (int j = b.hidden; j < b.visible; ++j) {
      F32x16 values[kVectors];
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n)
        values[n] = widen16_kv<kType>(v[j] + (d + static_cast<size_t>(n) * 16) * kBytes);
#pragma GCC unroll 16
      for (int i = 0; i < kN * kHeads; ++i) {
        const F32x16 weight = set1(factor[i][j]);
#pragma GCC unroll 2
        for (int n = 0; n < kVectors; ++n) sum[i][n] = fma(weight, values[n], sum[i][n]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN * kHeads; ++i) {
      float* const out = rows[first + i / kHeads].out + i % kHeads * d_head + d;
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) store(out + n * 16, sum[i][n]);
    }
  }
}

// A block of kv head g with its scores, which the rows see in the same way.
template <KvDType kType, int kHeads, int kRows>
SPECD_INLINE void add_block(const AttentionArgs& a, const Block& b, int32_t g,
                            const F32x16 (&score)[kHeads * kRows], Query<kHeads>* rows) {
  constexpr size_t kBytes = kv_dtype_bytes(kType);
  constexpr int kAll = kRows * kHeads;
  static_assert(kAll <= 16, "their factors are the lanes of a vector");
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  alignas(64) float lane_index[16];
  for (int i = 0; i < 16; ++i) lane_index[i] = static_cast<float>(i);

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
  alignas(64) float p[kAll][16];
  alignas(64) float c[16] = {};
#pragma GCC unroll 16
  for (int i = 0; i < kAll; ++i) {
    float& m = rows[i / kHeads].m[i % kHeads];
    const F32x16 scaled = select(seen, mul(score[i], key_scale), set1(-__builtin_inff()));
    const float block_max = tree_max(scaled);
    const float m_new = m > block_max ? m : block_max;
    c[i] = m - m_new;
    m = m_new;
    store(p[i], select(seen, exp(sub(scaled, set1(m_new))), set1(0.0f)));
  }
  store(c, exp(load(c)));
  for (int i = 0; i < kAll; ++i) {
    float& l = rows[i / kHeads].l[i % kHeads];
    const F32x16 e = load(p[i]);
    l = fma1(l, c[i], tree_sum(e));
    if constexpr (kType == KvDType::kInt8) store(p[i], mul(e, value_scale));
  }

  const char* v[kPageTokens];
  for (int j = 0; j < b.visible; ++j) {
    v[j] = static_cast<const char*>(a.kv.v) +
           (static_cast<size_t>(b.slot[j] / kPageTokens) * a.kv.page_stride +
            (static_cast<size_t>(g) * kPageTokens + static_cast<size_t>(b.slot[j] % kPageTokens)) *
                d_head) *
               kBytes;
  }
  size_t d = 0;
  for (; d + 16 * kTwice <= d_head; d += 16 * kTwice)
    add_values<kType, kHeads, kRows, kTwice>(b, v, d, d_head, p, c, rows);
  if (d < d_head) add_values<kType, kHeads, kRows, 1>(b, v, d, d_head, p, c, rows);
}

// n blocks from position `first` on, which the rows see as row `row` does; more than one are whole pages.
template <KvDType kType, int kHeads, int kRows>
__attribute__((noinline)) void add_blocks(const AttentionArgs& a, int64_t row, int32_t first, int n,
                                          int32_t g, Query<kHeads>* rows) {
  Block b[kTwice];
  F32x16 score[kTwice][kHeads * kRows];
  for (int i = 0; i < n; ++i) b[i] = block_at(a, row, first + i * kPageTokens);
  if (n == kTwice && b[0].whole_page) {
    scores_of_pages<kType, kHeads, kRows, kTwice>(a, b, g, rows, score);
  } else if (b[0].whole_page) {
    scores_of_pages<kType, kHeads, kRows, 1>(a, b, g, rows, score);
  } else {
    scores_of_slots<kType, kHeads, kRows>(a, b[0], g, rows, score[0]);
  }
  for (int i = 0; i < n; ++i) add_block<kType, kHeads, kRows>(a, b[i], g, score[i], rows);
}

// Query heads [head, head + kHeads), all of kv head g, of rows [row, row + n_rows): shared_rows(kHeads), or one.
template <KvDType kType, int kHeads>
void heads_of(const AttentionArgs& a, int64_t row, int n_rows, int32_t g, int32_t head) {
  constexpr int kShared = shared_rows(kHeads);
  const size_t d_head = static_cast<size_t>(a.kv.head_dim);
  Query<kHeads> rows[kShared];
  // In [shared_begin, shared_end) all rows see the same pages. A row outside [begin, end) sees nothing.
  int32_t shared_begin = 0, shared_end = a.span[row];
  int32_t begin = window_begin(a, row), end = 0;
  for (int r = 0; r < n_rows; ++r) {
    const int64_t at = row + r, heads = a.n_heads + 2 * int64_t{a.kv.n_kv_heads};
    Query<kHeads>& query = rows[r];
    query.q = a.qkv + (at * heads + head) * a.kv.head_dim;
    query.out = a.out + (at * a.n_heads + head) * a.kv.head_dim;
    for (int h = 0; h < kHeads; ++h) {
      query.m[h] = -__builtin_inff();
      query.l[h] = 0.0f;
      for (size_t d = 0; d < d_head; ++d) query.out[h * d_head + d] = 0.0f;
    }
    const int32_t first = window_begin(a, at), span = a.table[at] == a.table[row] ? a.span[at] : 0;
    shared_begin = first > shared_begin ? first : shared_begin;
    shared_end = span < shared_end ? span : shared_end;
    begin = first < begin ? first : begin;
    end = a.position[at] >= end ? a.position[at] + 1 : end;
  }
  for (int32_t first = begin / kPageTokens * kPageTokens, n; first < end;
       first += n * kPageTokens) {
    const bool together = first >= shared_begin && first + kPageTokens <= shared_end;
    n = together && first + kTwice * kPageTokens <= shared_end ? kTwice : 1;
    if (together && n_rows > 1) {
      add_blocks<kType, kHeads, kShared>(a, row, first, n, g, rows);
      continue;
    }
    for (int r = 0; r < n_rows; ++r) {
      const bool sees =
          first <= a.position[row + r] && first + kPageTokens > window_begin(a, row + r);
      if (sees) add_blocks<kType, kHeads, 1>(a, row + r, first, n, g, rows + r);
    }
  }
  for (int r = 0; r < n_rows; ++r) {
    if (a.position[row + r] < 0) continue;
    for (int h = 0; h < kHeads; ++h) {
      for (size_t d = 0; d < d_head; d += 16) {
        float* o = rows[r].out + h * d_head + d;
        const F32x16 mean = div(load(o), set1(rows[r].l[h]));
        store(o, kType == KvDType::kF8E4M3 ? mul(mean, set1(a.kv.v_scale)) : mean);
      }
    }
  }
}

template <KvDType kType, int kHeads>
void rows_of(const AttentionArgs& a, int64_t row, int64_t n_rows, int32_t g, int32_t head) {
  constexpr int kShared = shared_rows(kHeads);
  int64_t r = 0;
  for (; r + kShared <= n_rows; r += kShared) heads_of<kType, kHeads>(a, row + r, kShared, g, head);
  for (; r < n_rows; ++r) heads_of<kType, kHeads>(a, row + r, 1, g, head);
}

template <KvDType kType>
void attention_of(const AttentionArgs& a, int part, int parts) {
  const int64_t groups = a.kv.n_kv_heads;
  const int32_t heads = a.n_heads / a.kv.n_kv_heads;  // query heads per kv head
  // Take rows together where they can share pages, unless a thread would have none. Round-robin: in a prefill later
  // rows see more positions.
  const int shared = shared_rows(heads < 4 ? heads : 4);
  const int64_t together = a.n_rows * groups >= int64_t{shared} * parts ? shared : 1;
  const int64_t row_units = (a.n_rows + together - 1) / together;
  for (int64_t unit = part; unit < row_units * groups; unit += parts) {
    const int64_t row = unit / groups * together;
    const int64_t n_rows = a.n_rows - row < together ? a.n_rows - row : together;
    const int32_t g = static_cast<int32_t>(unit % groups);
    for (int32_t h = 0; h < heads;) {
      const int32_t head = g * heads + h;
      const int32_t left = heads - h;
      if (left >= 4) {
        rows_of<kType, 4>(a, row, n_rows, g, head);
        h += 4;
      } else if (left == 3) {
        rows_of<kType, 3>(a, row, n_rows, g, head);
        h += 3;
      } else if (left == 2) {
        rows_of<kType, 2>(a, row, n_rows, g, head);
        h += 2;
      } else {
        rows_of<kType, 1>(a, row, n_rows, g, head);
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
