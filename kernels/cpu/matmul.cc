// The strict matmul: weights in panels of 16 output columns (the vector lanes), one chain of fused
// multiply-adds per (row, column, segment) along k.
//
// A panel is [n_in][16]. Rows and panels are tiled in registers so that enough independent chains
// are in flight: few rows take several panels at once, more rows share each widened weight. A block
// of k of a panel stays in L1 while the row tiles pass over it; storing and reloading a float32
// accumulator in between is exact.
#include "specd/kernels/matmul.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// Register tiles: the most rows of a tile, and how many panels a tile of so many rows takes.
#if SPECD_ISA_LEVEL == 2
constexpr int kTileRows = 8;
constexpr int panels_of(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
#elif SPECD_ISA_LEVEL == 1
constexpr int kTileRows = 6;
constexpr int panels_of(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int kTileRows = 4;
constexpr int panels_of(int rows) { return rows > 0 ? 1 : 1; }
#endif
// A block is kGroup panels by kBlockBytes of each (by k) by up to kChunkRows rows. Panels side by
// side also are as many streams from memory, which one stream cannot keep busy.
constexpr int kChunkRows = 48;
constexpr int kGroup = 4;
// Few rows take wider groups: one copy of x serves more panels. rows * group stays within 48 * 4.
constexpr int group_of(int rows) { return rows <= kChunkRows * kGroup / 16 ? 16 : kGroup; }
constexpr int kBlockBytes = 16384;

template <DType kType>
constexpr int kPanelStep = kPanelColumns*(kType == DType::kF32 ? 4 : 2);  // bytes per k

// Where column i of a panel lies among its 16. bfloat16 under AVX2 interleaves the halves: then the
// even places widen by a shift and the odd ones by a mask.
template <DType kType>
constexpr int place_of(int column) {
#if SPECD_ISA_LEVEL == 1
  if (kType == DType::kBF16) return column < 8 ? 2 * column : 2 * (column - 8) + 1;
#endif
  return column;
}

template <DType kType>
SPECD_INLINE F32x16 load_weights(const char* p) {
#if SPECD_ISA_LEVEL == 1
  if constexpr (kType == DType::kBF16) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {
        _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
#endif
  return widen16<kType>(p);
}

// sums[r][p] += x[r][k] * w[p][k] for k in [0, n): kRows rows by kPanels panels in registers.
// Meanwhile the memory at `fetch`, as far apart as the panels, is asked for: fetch_step bytes for
// every two k.
template <DType kType, int kRows, int kPanels>
__attribute__((noinline)) void tile(const float* x, size_t x_stride, const char* w,
                                    size_t panel_bytes, int n, float* sums, size_t sums_stride,
                                    const char* fetch, size_t fetch_step) {
  F32x16 acc[kRows][kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) acc[r][p] = load(sums + r * sums_stride + 16 * p);
  }
  constexpr int kStep = kPanelStep<kType>;
  int k = 0;
  for (; k + 2 <= n; k += 2) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) prefetch_far(fetch + p * panel_bytes);
    fetch += fetch_step;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const F32x16 weights = load_weights<kType>(w + i * kStep + p * panel_bytes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          acc[r][p] = fma(set1(x[r * x_stride + i]), weights, acc[r][p]);
        }
      }
    }
    x += 2;
    w += 2 * kStep;
  }
  if (k < n) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const F32x16 weights = load_weights<kType>(w + p * panel_bytes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r][p] = fma(set1(x[r * x_stride]), weights, acc[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) store(sums + r * sums_stride + 16 * p, acc[r][p]);
  }
}

using TileFn = void (*)(const float*, size_t, const char*, size_t, int, float*, size_t, const char*,
                        size_t);

// The tile of `rows` rows by one panel, or, if `wide`, by panels_of(rows).
template <DType kType>
TileFn tile_of(int rows, bool wide) {
  switch (rows) {
    case 1:
      return wide ? tile<kType, 1, panels_of(1)> : tile<kType, 1, 1>;
    case 2:
      return wide ? tile<kType, 2, panels_of(2)> : tile<kType, 2, 1>;
    case 3:
      return wide ? tile<kType, 3, panels_of(3)> : tile<kType, 3, 1>;
    case 4:
      return wide ? tile<kType, 4, panels_of(4)> : tile<kType, 4, 1>;
#if SPECD_ISA_LEVEL > 0
    case 5:
      return tile<kType, 5, 1>;
    case 6:
      return tile<kType, 6, 1>;
#endif
#if SPECD_ISA_LEVEL == 2
    case 7:
      return tile<kType, 7, 1>;
    case 8:
      return tile<kType, 8, 1>;
#endif
    default:
      return nullptr;
  }
}

// Rows [row, row + rows) by `panels` <= group_of(rows) panels from `panel` on: sums in a local
// block, then out.
template <DType kType>
void block(const MatmulArgs& a, int64_t panel, int panels, int row, int rows) {
  alignas(64) float sums[kChunkRows * 16 * kGroup];
  alignas(64) float totals[kChunkRows * 16 * kGroup];
  const size_t n_in = static_cast<size_t>(a.weights.n_in);
  constexpr size_t kStep = kPanelStep<kType>;
  constexpr int kBlock = static_cast<int>(kBlockBytes / kStep);
  // The block's x, rows a little more than a power of two apart: in place they often all fall into
  // the same few sets of the cache.
  constexpr size_t kRowStride = kBlock + 16;
  alignas(64) float x_block[kChunkRows * kRowStride];
  const size_t panel_bytes = n_in * kStep;
  const char* weights = static_cast<const char*>(a.weights.data) + panel * panel_bytes;
  const float* x = a.x + row * n_in;
  const size_t stride = static_cast<size_t>(16) * panels;
  const size_t n_sums = rows * stride;
  // Equal tiles, so that none has too few chains; but one or two rows over take several panels at
  // once.
  const int n_tiles = (rows + kTileRows - 1) / kTileRows;
  const bool full = panels_of(1) > 1 && (rows % kTileRows == 1 || rows % kTileRows == 2);
  const int segments = a.k_segments;
  for (int s = 0; s < segments; ++s) {
    const int begin = static_cast<int>(static_cast<int64_t>(a.weights.n_in) * s / segments);
    const int end = static_cast<int>(static_cast<int64_t>(a.weights.n_in) * (s + 1) / segments);
    for (size_t i = 0; i < n_sums; ++i) sums[i] = 0.0f;
    for (int k = begin; k < end; k += kBlock) {
      const int n = end - k < kBlock ? end - k : kBlock;
      // What is read next: the following k of these panels, or the start of the panels after them.
      const char* next =
          k + n < a.weights.n_in ? weights + (k + n) * kStep : weights + panels * panel_bytes;
      for (int r = 0; r < rows; ++r) {
        __builtin_memcpy(x_block + r * kRowStride, x + r * n_in + k, sizeof(float) * n);
      }
      for (int p = 0; p < panels; p += panels_of(1)) {
        const int p_end = panels - p < panels_of(1) ? panels : p + panels_of(1);
        int first = 0;
        for (int t = 0; t < n_tiles; ++t) {
          const int last = full && t + 1 < n_tiles ? first + kTileRows : rows * (t + 1) / n_tiles;
          const int tile_rows = last - first;
          // Each pass asks for its share of what is next, so that the memory is never idle.
          const size_t fetch_at = n * kStep * first / rows;
          const size_t fetch_step = 2 * kStep * tile_rows / rows;
          for (int q = p; q < p_end;) {
            const bool wide = p_end - q >= panels_of(tile_rows);
            tile_of<kType>(tile_rows, wide)(x_block + first * kRowStride, kRowStride,
                                            weights + q * panel_bytes + k * kStep, panel_bytes, n,
                                            sums + first * stride + 16 * q, stride,
                                            next + q * panel_bytes + fetch_at, fetch_step);
            q += wide ? panels_of(tile_rows) : 1;
          }
          first = last;
        }
      }
    }
    if (s == 0) {
      for (size_t i = 0; i < n_sums; ++i) totals[i] = sums[i];
    } else {
      for (size_t i = 0; i < n_sums; ++i) totals[i] = totals[i] + sums[i];
    }
  }
  const size_t n_out = static_cast<size_t>(a.weights.n_out);
  const size_t column = static_cast<size_t>(panel) * 16;
  const size_t columns = n_out - column < stride ? n_out - column : stride;
  for (int r = 0; r < rows; ++r) {
    float* out = a.out + (row + r) * n_out + column;
    for (size_t i = 0; i < columns; ++i) out[i] = totals[r * stride + i];
  }
}

template <DType kType>
void matmul_of(const MatmulArgs& a, int part, int parts) {
  const int64_t n_panels = (static_cast<int64_t>(a.weights.n_out) + 15) / 16;
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  if (n_chunks == 1) {
    const Share share = share_of(n_panels, part, parts);
    const int group = group_of(a.n_rows);
    for (int64_t panel = share.begin; panel < share.end; panel += group) {
      const int64_t left = share.end - panel;
      block<kType>(a, panel, left < group ? static_cast<int>(left) : group, 0, a.n_rows);
    }
    return;
  }
  // Chunks of rows vary fastest, so that a group's weights are read from memory once.
  const int64_t n_groups = (n_panels + kGroup - 1) / kGroup;
  const Share share = share_of(n_groups * n_chunks, part, parts);
  for (int64_t unit = share.begin; unit < share.end; ++unit) {
    const int64_t chunk = unit % n_chunks;
    const int first = static_cast<int>(a.n_rows * chunk / n_chunks);
    const int last = static_cast<int>(a.n_rows * (chunk + 1) / n_chunks);
    const int64_t panel = unit / n_chunks * kGroup;
    const int64_t left = n_panels - panel;
    block<kType>(a, panel, left < kGroup ? static_cast<int>(left) : kGroup, first, last - first);
  }
}

template <DType kType, typename T>
void pack_of(const PackArgs& a, int part, int parts) {
  const size_t n_in = static_cast<size_t>(a.packed.n_in);
  const int32_t end = a.column_begin + a.n_rows;
  // The columns that only fill the last panel are zeroed with the last real one.
  const int32_t filled = end == a.packed.n_out ? (end + 15) / 16 * 16 : end;
  const int32_t first_panel = a.column_begin / 16;
  const Share share = share_of((filled + 15) / 16 - first_panel, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int32_t panel = first_panel + static_cast<int32_t>(i);
    T* to = static_cast<T*>(a.packed.data) + static_cast<size_t>(panel) * 16 * n_in;
    // Blocks of k, so that the panel's lines stay in L1 while its columns are written one by one.
    for (size_t k0 = 0; k0 < n_in; k0 += 256) {
      const size_t k1 = n_in - k0 < 256 ? n_in : k0 + 256;
      for (int c = 0; c < 16; ++c) {
        const int32_t column = panel * 16 + c;
        if (column < a.column_begin || column >= filled) continue;
        T* place = to + place_of<kType>(c);
        if (column >= end) {
          for (size_t k = k0; k < k1; ++k) place[k * 16] = 0;
          continue;
        }
        const char* from = static_cast<const char*>(a.source) +
                           static_cast<size_t>(column - a.column_begin) * n_in * sizeof(T);
        for (size_t k = k0; k < k1; ++k) {
          T value;
          __builtin_memcpy(&value, from + k * sizeof(T), sizeof(T));
          place[k * 16] = value;
        }
      }
    }
  }
}

}  // namespace

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

}  // namespace specd::kernels::SPECD_ISA
