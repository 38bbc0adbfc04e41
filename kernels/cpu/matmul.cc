// The strict matmul: weights in panels of output columns, sixteen to a vector, one chain of fused
// multiply-adds along k per (row, column, segment).
//
// Compiled once more for processors that multiply pairs of bfloat16 (SPECD_BF16_PAIRS, numerics
// bf16). Then x is rounded to bfloat16, two k of a column share one 32-bit word, and "k" below
// counts pairs. Everything else is the same.
//
// A panel is [n_in][kColumns]. Rows and panels are tiled in registers so that enough independent
// chains are in flight: tiles of few rows take several vectors of columns at once, tiles of more
// rows share each widened weight. A block of k of a panel stays in L1 while the row tiles pass over
// it. Storing and reloading a float32 accumulator in between is exact.
#include "specd/kernels/matmul.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// Register tiles: the maximum number of rows of a tile, and the number of column vectors for a tile
// of a given number of rows.
#if SPECD_ISA_LEVEL == 2
constexpr int kTileRows = 8;
constexpr int vectors_of(int rows) { return rows <= 4 ? 4 : 2; }
#elif SPECD_ISA_LEVEL == 1
constexpr int kTileRows = 6;
constexpr int vectors_of(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int kTileRows = 4;
constexpr int vectors_of(int /*rows*/) { return 1; }
#endif

#ifndef SPECD_BF16_PAIRS
#define SPECD_BF16_PAIRS 0
#endif
template <DType kType>
constexpr bool kPairs = SPECD_BF16_PAIRS&& kType == DType::kBF16;

// Where vectors are wide enough, bfloat16 is stored in 32-bit words, one column in the low half and
// one in the high half: of a single load, a shift widens the one and a mask the other.
template <DType kType>
constexpr bool kHalves = (SPECD_ISA_LEVEL > 0) && (kType == DType::kBF16) && !kPairs<kType>;
template <DType kType>
constexpr int kColumns = (SPECD_ISA_LEVEL == 2) && (kHalves<kType>) ? 32 : 16;  // per panel
template <DType kType>
constexpr int kVectors = kColumns<kType> / 16;
template <DType kType>
constexpr int kStep = kColumns<kType>*(kType == DType::kF32 || kPairs<kType>
                                           ? 4
                                           : 2);  // bytes of a panel per k
// Number of k for a number of inputs.
template <DType kType>
constexpr int depth_of(int n_in) {
  return kPairs<kType> ? (n_in + 1) / 2 : n_in;
}
template <DType kType>
constexpr int panels_of(int rows) {
  return vectors_of(rows) <= kVectors<kType> ? 1 : vectors_of(rows) / kVectors<kType>;
}

// A block is up to kChunkRows rows by up to kGroupColumns columns by kBlock of k. Its x is copied
// with a row stride slightly above a power of two: in place, rows often all map to the same few
// cache sets.
constexpr int kChunkRows = 48;
constexpr int kGroupColumns = 256;
constexpr int kBlock = 256;
constexpr int kRowStride = kBlock + 16;

// While a block is multiplied, the weights of the next one are prefetched from this many panels
// side by side, because a single stream cannot saturate the memory.
constexpr int kStreams = 4;

// Position of column i among the kColumns of a panel.
template <DType kType>
constexpr int place_of(int column) {
  constexpr int kHalf = kColumns<kType> / 2;
  if (!kHalves<kType>) return column;
  return column < kHalf ? 2 * column : 2 * (column - kHalf) + 1;
}

// Offset of input k of column c in a panel, in elements.
template <DType kType>
constexpr size_t element_of(int c, size_t k) {
  if (kPairs<kType>) return (k / 2 * kColumns<kType> + static_cast<size_t>(c)) * 2 + k % 2;
  return k * kColumns<kType> + static_cast<size_t>(place_of<kType>(c));
}

// Copies x for k in [k, k + n) of n_in inputs; pairs of bfloat16 as the 32-bit words of a factor.
template <DType kType>
SPECD_INLINE void copy_x(float* to, const float* x, [[maybe_unused]] int n_in, int k, int n) {
  if constexpr (!kPairs<kType>) {
    __builtin_memcpy(to, x + k, sizeof(float) * static_cast<size_t>(n));
  } else {
#if SPECD_BF16_PAIRS
    for (int i = 0; i < n; i += 16) {  // x_block has room for 16 more
      const auto some = [&](int first) {
        const int left = n_in - first;
        const unsigned mask = left >= 16 ? 0xffffu : left > 0 ? (1u << left) - 1 : 0u;
        return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + (left > 0 ? first : 0));
      };
      const int first = 2 * (k + i);
      const __m512bh pairs = _mm512_cvtne2ps_pbh(some(first + 16), some(first));
      __builtin_memcpy(to + i, &pairs, sizeof(pairs));
    }
#endif
  }
}

template <DType kType>
SPECD_INLINE F32x16 multiply_add(const F32x16& x, const F32x16& w, const F32x16& sum) {
#if SPECD_BF16_PAIRS
  if constexpr (kPairs<kType>) {
    return {
        _mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(w.v))};
  }
#endif
  return fma(x, w, sum);
}

// The columns of a panel at one k.
template <DType kType>
struct PanelRow {
  F32x16 vector[kVectors<kType>];
};
template <DType kType>
SPECD_INLINE PanelRow<kType> load_weights(const char* p) {
#if SPECD_ISA_LEVEL == 1
  if constexpr (kHalves<kType>) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {{{_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(w, high))}}};
  }
#elif SPECD_ISA_LEVEL == 2
  if constexpr (kPairs<kType>) return {{{_mm512_loadu_ps(p)}}};
  if constexpr (kHalves<kType>) {
    const __m512i w = _mm512_loadu_si512(p);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {{{_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))},
             {_mm512_castsi512_ps(_mm512_and_si512(w, high))}}};
  }
#endif
  if constexpr (kVectors<kType> == 1 && !kPairs<kType>) return {{widen16<kType>(p)}};
}

// sums[r][c] += x[r][k] * w[c][k] for k in [0, n): kRows rows by the columns of kPanels panels, in
// registers. Meanwhile kStreams memory streams, starting at `fetch` and as far apart as the panels,
// are prefetched: one line of each, advancing by fetch_step bytes, for every kStreams lines of
// weights read.
//
// TSan does not instrument a tile, because each load would become a call and dominate the suite's
// time. x and sums are arrays of block(), where TSan sees their sources and destinations; of the
// weights, written once when a model is loaded, it sees only the writer.
template <DType kType, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) void tile(const float* x, const char* w,
                                                           size_t panel_bytes, int n, float* sums,
                                                           size_t sums_stride, const char* fetch,
                                                           size_t fetch_step) {
  constexpr int kAcross = kPanels * kVectors<kType>;
  F32x16 acc[kRows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kAcross; ++v) acc[r][v] = load(sums + r * sums_stride + 16 * v);
  }
  const auto one_k = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const PanelRow<kType> weights = load_weights<kType>(w + p * panel_bytes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 factor = set1(x[r * kRowStride]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors<kType>; ++v) {
          F32x16& sum = acc[r][p * kVectors<kType> + v];
          sum = multiply_add<kType>(factor, weights.vector[v], sum);
        }
      }
    }
    x += 1;
    w += kStep<kType>;
  };
  // This many k read kStreams lines.
  constexpr int kRound = kStreams * 64 / (kPanels * kStep<kType>);
  static_assert(kRound > 0);
  int k = 0;
  for (; k + kRound <= n; k += kRound) {
#pragma GCC unroll 16
    for (int s = 0; s < kStreams; ++s) prefetch_far(fetch + s * panel_bytes);
    fetch += fetch_step;
#pragma GCC unroll 2
    for (int i = 0; i < kRound; ++i) one_k();
  }
  for (; k < n; ++k) one_k();
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kAcross; ++v) store(sums + r * sums_stride + 16 * v, acc[r][v]);
  }
}

using TileFn = void (*)(const float*, const char*, size_t, int, float*, size_t, const char*,
                        size_t);

// The tile of `rows` rows by one panel or, if `wide`, by panels_of(rows).
template <DType kType>
TileFn tile_of(int rows, bool wide) {
#define SPECD_TILE(n) \
  case n:             \
    return wide ? tile<kType, n, panels_of<kType>(n)> : tile<kType, n, 1>
  switch (rows) {
    SPECD_TILE(1);
    SPECD_TILE(2);
    SPECD_TILE(3);
    SPECD_TILE(4);
#if SPECD_ISA_LEVEL > 0
    SPECD_TILE(5);
    SPECD_TILE(6);
#endif
#if SPECD_ISA_LEVEL == 2
    SPECD_TILE(7);
    SPECD_TILE(8);
#endif
    default:
      return nullptr;
  }
#undef SPECD_TILE
}

// Rows [row, row + rows) by `panels` panels starting at `panel`: sums go to a local block, then to
// out. `after` is the weights that this thread reads next, or null.
template <DType kType>
void block(const MatmulArgs& a, int64_t panel, int panels, int row, int rows, const char* after) {
  alignas(64) float sums[kChunkRows * kGroupColumns];
  alignas(64) float x_block[kChunkRows * kRowStride];
  const int depth = depth_of<kType>(a.weights.n_in);
  const size_t n_in = static_cast<size_t>(a.weights.n_in);
  const size_t n_out = static_cast<size_t>(a.weights.n_out);
  const size_t panel_bytes = static_cast<size_t>(depth) * kStep<kType>;
  const char* weights = static_cast<const char*>(a.weights.data) + panel * panel_bytes;
  const float* x = a.x + row * n_in;
  const size_t stride = static_cast<size_t>(kColumns<kType>) * panels;
  const size_t column = static_cast<size_t>(panel) * kColumns<kType>;
  const size_t columns = n_out - column < stride ? n_out - column : stride;
  // Equal tiles, so that none has too few chains; one or two remaining rows take several panels
  // at once.
  const int n_tiles = (rows + kTileRows - 1) / kTileRows;
  const int over = rows % kTileRows;
  const bool full = vectors_of(1) > 1 && (over == 1 || over == 2);
  const int widest = panels_of<kType>(full ? over : rows / n_tiles);
  const int segments = a.k_segments;
  for (int s = 0; s < segments; ++s) {
    const int begin = static_cast<int>(static_cast<int64_t>(depth) * s / segments);
    const int end = static_cast<int>(static_cast<int64_t>(depth) * (s + 1) / segments);
    __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(rows) * stride);
    for (int k = begin; k < end; k += kBlock) {
      const int n = end - k < kBlock ? end - k : kBlock;
      const char* next = k + n < depth ? weights + (k + n) * kStep<kType> : after;
      for (int r = 0; r < rows; ++r) {
        copy_x<kType>(x_block + r * kRowStride, x + r * n_in, a.weights.n_in, k, n);
      }
      size_t asked = 0;
      for (int p = 0; p < panels; p += widest) {
        if (p % kStreams == 0) asked = 0;
        const int p_end = panels - p < widest ? panels : p + widest;
        int first = 0;
        for (int t = 0; t < n_tiles; ++t) {
          const int last = full && t + 1 < n_tiles ? first + kTileRows : rows * (t + 1) / n_tiles;
          const int tile_rows = last - first;
          for (int q = p; q < p_end;) {
            const int across =
                p_end - q >= panels_of<kType>(tile_rows) ? panels_of<kType>(tile_rows) : 1;
            // Each pass prefetches its share of the next weights of these kStreams panels, so that
            // the memory is never idle; at the end it prefetches lines that are already cached.
            const char* fetch = weights;
            size_t fetch_step = 0;
            if (next != nullptr) {
              fetch = next + p / kStreams * kStreams * panel_bytes +
                      n * kStep<kType> * asked / (kStreams * rows);
              fetch_step = size_t{64} * tile_rows / rows;
            }
            asked += static_cast<size_t>(across) * tile_rows;
            tile_of<kType>(tile_rows, across > 1)(
                x_block + first * kRowStride, weights + q * panel_bytes + k * kStep<kType>,
                panel_bytes, n, sums + first * stride + kColumns<kType> * q, stride, fetch,
                fetch_step);
            q += across;
          }
          first = last;
        }
      }
    }
    float* const to = a.apart ? a.out + static_cast<size_t>(s) * a.n_rows * n_out : a.out;
    for (int r = 0; r < rows; ++r) {
      float* out = to + (row + r) * n_out + column;
      if (s == 0 || a.apart) {
        __builtin_memcpy(out, sums + r * stride, sizeof(float) * columns);
      } else {
        for (size_t i = 0; i < columns; ++i) out[i] = out[i] + sums[r * stride + i];
      }
    }
  }
}

template <DType kType>
void matmul_of(const MatmulArgs& a, int part, int parts) {
  constexpr int kGroup = kGroupColumns / kColumns<kType>;
  const int64_t n_panels =
      (static_cast<int64_t>(a.weights.n_out) + kColumns<kType> - 1) / kColumns<kType>;
  const size_t panel_bytes = static_cast<size_t>(depth_of<kType>(a.weights.n_in)) * kStep<kType>;
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  const Share share = share_of(n_panels, part, parts);
  for (int64_t panel = share.begin; panel < share.end; panel += kGroup) {
    const int64_t left = share.end - panel;
    const char* weights = static_cast<const char*>(a.weights.data) + panel * panel_bytes;
    const char* next_group = left > kGroup ? weights + kGroup * panel_bytes : nullptr;
    // All rows pass over a group before the next group, so that it is read from memory once.
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int first = static_cast<int>(int64_t{a.n_rows} * chunk / n_chunks);
      const int last = static_cast<int>(int64_t{a.n_rows} * (chunk + 1) / n_chunks);
      block<kType>(a, panel, left < kGroup ? static_cast<int>(left) : kGroup, first, last - first,
                   chunk + 1 < n_chunks ? weights : next_group);
    }
  }
}

template <DType kType, typename T>
void pack_of(const PackArgs& a, int part, int parts) {
  constexpr int kWidth = kColumns<kType>;
  const size_t n_in = static_cast<size_t>(a.packed.n_in);
  const size_t stride = a.source_stride == 0 ? n_in : static_cast<size_t>(a.source_stride);
  const size_t panel_elements = static_cast<size_t>(kWidth) *
                                static_cast<size_t>(depth_of<kType>(a.packed.n_in)) *
                                (kPairs<kType> ? 2 : 1);
  const int32_t end = a.column_begin + a.n_rows;
  // Padding columns of the last panel are zeroed together with its last real column.
  const int32_t filled = end == a.packed.n_out ? (end + kWidth - 1) / kWidth * kWidth : end;
  const int32_t first_panel = a.column_begin / kWidth;
  const Share share = share_of((filled + kWidth - 1) / kWidth - first_panel, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int32_t panel = first_panel + static_cast<int32_t>(i);
    T* to = static_cast<T*>(a.packed.data) + static_cast<size_t>(panel) * panel_elements;
    // Blocks of k, so that the panel's lines stay in L1 while its columns are written one by one.
    for (size_t k0 = 0; k0 < n_in; k0 += 256) {
      const size_t k1 = n_in - k0 < 256 ? n_in : k0 + 256;
      for (int c = 0; c < kWidth; ++c) {
        const int32_t column = panel * kWidth + c;
        if (column < a.column_begin || column >= filled) continue;
        if (n_in % 2 == 1 && kPairs<kType>) to[element_of<kType>(c, n_in)] = 0;
        if (column >= end) {
          for (size_t k = k0; k < k1; ++k) to[element_of<kType>(c, k)] = 0;
          continue;
        }
        const char* from = static_cast<const char*>(a.source) +
                           static_cast<size_t>(column - a.column_begin) * stride * sizeof(T);
        for (size_t k = k0; k < k1; ++k) {
          T value;
          __builtin_memcpy(&value, from + k * sizeof(T), sizeof(T));
          to[element_of<kType>(c, k)] = value;
        }
      }
    }
  }
}

}  // namespace

#if SPECD_BF16_PAIRS
void matmul(const MatmulArgs& a, int part, int parts) { matmul_of<DType::kBF16>(a, part, parts); }
void pack(const PackArgs& a, int part, int parts) {
  pack_of<DType::kBF16, uint16_t>(a, part, parts);
}
#else
void matmul(const MatmulArgs& a, int part, int parts) {
  switch (a.weights.dtype) {
    case DType::kF32:
      return matmul_of<DType::kF32>(a, part, parts);
    case DType::kF16:
      return matmul_of<DType::kF16>(a, part, parts);
    case DType::kBF16:
      return matmul_of<DType::kBF16>(a, part, parts);
  }
}

void pack(const PackArgs& a, int part, int parts) {
  switch (a.packed.dtype) {
    case DType::kF32:
      return pack_of<DType::kF32, uint32_t>(a, part, parts);
    case DType::kF16:
      return pack_of<DType::kF16, uint16_t>(a, part, parts);
    case DType::kBF16:
      return pack_of<DType::kBF16, uint16_t>(a, part, parts);
  }
}

#endif

}  // namespace specd::kernels::SPECD_ISA
