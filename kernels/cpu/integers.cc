// The matmul of codes (integers.h): x is rounded to integers, products of bytes are added in groups
// of four k, and a run ends with one multiply-add per output.
//
// Compiled once more for processors with AVX-512 VNNI (SPECD_VNNI), whose dpbusd multiplies 64 bytes
// and adds them in one instruction. The sums are integers, so every tiling gives the same bits.
//
// A panel is 16 columns: [depth / 4][16][4] bytes of 8 bits, or [depth / 8][16][4] bytes that have
// k 0 to 3 in their low halves and k 4 to 7 in their high halves. All panels are followed by the scales,
// [panel][n_groups][16], and the zeros of the same shape.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "specd/kernels/matmul.h"

#ifndef SPECD_VNNI
#define SPECD_VNNI 0
#endif

namespace specd::kernels::SPECD_ISA {
namespace {

constexpr int kWidth = 16;        // columns of a panel
constexpr int kLine = 64;         // bytes that 16 columns have in one step
constexpr int kStreams = 4;       // panels side by side that are prefetched, as in matmul.cc
constexpr int kChunkRows = 48;    // rows whose sums stay in the cache
constexpr int kGroupPanels = 16;  // panels that all rows pass over before the next
constexpr int kBlock = 1024;      // k of a run that all panels of a group pass over

// Sums in registers, of 16 columns each.
#if SPECD_ISA_LEVEL == 2
constexpr int kSums = 16;
constexpr int kTileRows = 8;
#else
constexpr int kSums = 4;
constexpr int kTileRows = 2;
#endif
// Panels of a tile of so many rows.
template <int kParts>
constexpr int panels_of(int rows) {
  const int fit = kSums / (rows * kParts);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// ---- bytes of 16 columns ----

#if SPECD_ISA_LEVEL == 0
struct Bytes64 {
  uint8_t v[64];
};
SPECD_INLINE Bytes64 load_bytes(const uint8_t* p) {
  Bytes64 b;
  __builtin_memcpy(b.v, p, sizeof b.v);
  return b;
}
SPECD_INLINE Bytes64 low_halves(const Bytes64& b) {
  Bytes64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = b.v[i] & 15;
  return r;
}
SPECD_INLINE Bytes64 high_halves(const Bytes64& b) {
  Bytes64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(b.v[i] >> 4);
  return r;
}
// sum + the products of the four codes of each column and x[0..3].
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Bytes64& codes, const int8_t* x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) {
    int32_t products = 0;
    for (int k = 0; k < 4; ++k) products += int32_t{codes.v[4 * i + k]} * int32_t{x[k]};
    r.v[i] = sum.v[i] + static_cast<uint32_t>(products);
  }
  return r;
}
SPECD_INLINE I32x16 multiply(const I32x16& a, const I32x16& b) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] * b.v[i];
  return r;
}
SPECD_INLINE I32x16 widen_bytes(const uint8_t* p) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = p[i];
  return r;
}
SPECD_INLINE void store_int(int32_t* p, const I32x16& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
#else
SPECD_INLINE int32_t word_of(const int8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  return word;
}
#endif

#if SPECD_ISA_LEVEL == 1
struct Bytes64 {
  __m256i lo, hi;
};
SPECD_INLINE Bytes64 load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
SPECD_INLINE Bytes64 low_halves(const Bytes64& b) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(b.lo, mask), _mm256_and_si256(b.hi, mask)};
}
SPECD_INLINE Bytes64 high_halves(const Bytes64& b) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(b.lo, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(b.hi, 4), mask)};
}
// maddubs would saturate at 16 bits: bytes of even and of odd k as 16 bits.
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Bytes64& codes, const int8_t* x) {
  const __m256i four = _mm256_set1_epi32(word_of(x)), mask = _mm256_set1_epi16(0xff);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8),
                odd = _mm256_srai_epi16(four, 8);
  const auto half = [&](const __m256i total, const __m256i b) __attribute__((always_inline)) {
    return _mm256_add_epi32(total,
                            _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(b, mask), even),
                                             _mm256_madd_epi16(_mm256_srli_epi16(b, 8), odd)));
  };
  return {half(sum.lo, codes.lo), half(sum.hi, codes.hi)};
}
SPECD_INLINE I32x16 multiply(const I32x16& a, const I32x16& b) {
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
#endif

#if SPECD_ISA_LEVEL == 2
struct Bytes64 {
  __m512i v;
};
SPECD_INLINE Bytes64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
SPECD_INLINE Bytes64 low_halves(const Bytes64& b) {
  return {_mm512_and_si512(b.v, _mm512_set1_epi8(15))};
}
SPECD_INLINE Bytes64 high_halves(const Bytes64& b) {
  return {_mm512_and_si512(_mm512_srli_epi16(b.v, 4), _mm512_set1_epi8(15))};
}
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Bytes64& codes, const int8_t* x) {
  const __m512i four = _mm512_set1_epi32(word_of(x));
#if SPECD_VNNI
  return {_mm512_dpbusd_epi32(sum.v, codes.v, four)};
#else
  const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(four, 8), 8),
                odd = _mm512_srai_epi16(four, 8);
  return {_mm512_add_epi32(
      sum.v,
      _mm512_add_epi32(_mm512_madd_epi16(_mm512_and_si512(codes.v, _mm512_set1_epi16(0xff)), even),
                       _mm512_madd_epi16(_mm512_srli_epi16(codes.v, 8), odd)))};
#endif
}
SPECD_INLINE I32x16 multiply(const I32x16& a, const I32x16& b) {
  return {_mm512_mullo_epi32(a.v, b.v)};
}
SPECD_INLINE I32x16 widen_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
SPECD_INLINE void store_int(int32_t* p, const I32x16& a) { _mm512_storeu_si512(p, a.v); }
#endif

SPECD_INLINE I32x16 load_ints(const int32_t* p) {
  return load_int(reinterpret_cast<const uint32_t*>(p));
}
SPECD_INLINE I32x16 set1_ints(int32_t a) { return set1_int(static_cast<uint32_t>(a)); }

// ---- the packed matrix ----

template <int kBits>
constexpr int kStepK = kBits == 8 ? 4 : 8;  // k of a line

struct Panels {
  const uint8_t* codes;
  const float* scale;
  const uint8_t* zero;
  size_t panel_bytes;
};
SPECD_INLINE Panels panels_in(const PackedMatrix& m) {
  const IntegerOrder& order = *m.order;
  const size_t columns = (static_cast<size_t>(m.n_out) + kPaddedColumns - 1) / kPaddedColumns *
                         kPaddedColumns,
               groups = static_cast<size_t>(order.n_groups);
  Panels p;
  p.panel_bytes = static_cast<size_t>(order.depth) * static_cast<size_t>(2 * order.bits);
  p.codes = static_cast<const uint8_t*>(m.data);
  p.scale = reinterpret_cast<const float*>(p.codes + columns / kWidth * p.panel_bytes);
  p.zero = reinterpret_cast<const uint8_t*>(p.scale + columns * groups);
  return p;
}

// What the tiles of a run and its panels share.
struct RunArgs {
  const float* scale;    // [panels][scale_step], 16 of this run's group
  const uint8_t* zero;   // the same, or null
  size_t scale_step;     // from one panel to the next
  int32_t any_zero;      // without `zero`
  const float* x_scale;  // of the first row; rows are n_runs apart
  const int32_t* x_sum;
  size_t n_runs;
};

// The end of a run: total = fma(float(sum - zero * x_sum), x_scale * scale, total).
SPECD_INLINE void end_run(const RunArgs& a, int row, int panel, const I32x16& sum, float* total) {
  const size_t of_x = static_cast<size_t>(row) * a.n_runs, of_w = panel * a.scale_step;
  const I32x16 zero = a.zero == nullptr ? set1_ints(a.any_zero) : widen_bytes(a.zero + of_w);
  const I32x16 exact = sub(sum, multiply(zero, set1_ints(a.x_sum[of_x])));
  const F32x16 scale = mul(set1(a.x_scale[of_x]), load(a.scale + of_w));
  store(total, fma(to_float(exact), scale, load(total)));
}

// kRows rows by kPanels panels over n of the packed k of one run. With one part, adds to the integers in
// `sums`; with two, ends the run and adds to the floats there. Prefetches as the tiles of matmul.cc do.
// TSan does not instrument it, for the same reason.
template <int kBits, int kParts, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) void tile(const int8_t* const* x, size_t x_stride,
                                                           const uint8_t* w, size_t panel_bytes,
                                                           int n, int32_t* sums, size_t sums_stride,
                                                           const RunArgs& run, const char* fetch,
                                                           size_t fetch_step) {
  I32x16 acc[kRows][kParts][kPanels];
  const int8_t* from[kParts];
#pragma GCC unroll 2
  for (int q = 0; q < kParts; ++q) from[q] = x[q];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int q = 0; q < kParts; ++q) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        acc[r][q][p] = kParts == 1 ? load_ints(sums + r * sums_stride + kWidth * p) : set1_ints(0);
      }
    }
  }
  const auto step = [&]() __attribute__((always_inline)) {
    Bytes64 codes[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) codes[p] = load_bytes(w + p * panel_bytes);
    const auto add_all = [&](const Bytes64* four, int k) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int q = 0; q < kParts; ++q) {
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) {
            acc[r][q][p] = add_products(acc[r][q][p], four[p], from[q] + r * x_stride + k);
          }
        }
      }
    };
    if constexpr (kBits == 8) {
      add_all(codes, 0);
    } else {
      Bytes64 half[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) half[p] = low_halves(codes[p]);
      add_all(half, 0);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) half[p] = high_halves(codes[p]);
      add_all(half, 4);
    }
#pragma GCC unroll 2
    for (int q = 0; q < kParts; ++q) from[q] += kStepK<kBits>;
    w += kLine;
  };
  constexpr int kRound = kStreams / kPanels;  // steps that read kStreams lines
  const int steps = n / kStepK<kBits>;
  int s = 0;
  for (; s + kRound <= steps; s += kRound) {
#pragma GCC unroll 4
    for (int i = 0; i < kStreams; ++i) prefetch_far(fetch + i * panel_bytes);
    fetch += fetch_step;
#pragma GCC unroll 4
    for (int i = 0; i < kRound; ++i) step();
  }
  for (; s < steps; ++s) step();
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      int32_t* const to = sums + r * sums_stride + kWidth * p;
      if constexpr (kParts == 1) {
        store_int(to, acc[r][0][p]);
      } else {
        end_run(run, r, p, add(shift_left<8>(acc[r][0][p]), acc[r][1][p]),
                reinterpret_cast<float*>(to));
      }
    }
  }
}

using TileFn = void (*)(const int8_t* const*, size_t, const uint8_t*, size_t, int, int32_t*, size_t,
                        const RunArgs&, const char*, size_t);

// The tile of `rows` rows by one panel or, if `wide`, by panels_of(rows).
template <int kBits, int kParts>
TileFn tile_of(int rows, bool wide) {
#define SPECD_TILE(n) \
  case n:             \
    return wide ? tile<kBits, kParts, n, panels_of<kParts>(n)> : tile<kBits, kParts, n, 1>
  switch (rows) {
    SPECD_TILE(1);
    SPECD_TILE(2);
#if SPECD_ISA_LEVEL == 2
    SPECD_TILE(3);
    SPECD_TILE(4);
    SPECD_TILE(5);
    SPECD_TILE(6);
    SPECD_TILE(7);
    SPECD_TILE(8);
#endif
    default:
      return nullptr;
  }
#undef SPECD_TILE
}

// Rows [row, row + rows) by `panels` panels starting at `panel`. `after` is the codes that this thread
// reads next, or null.
template <int kBits, int kParts>
void block(const MatmulArgs& a, int64_t panel, int panels, int row, int rows,
           const uint8_t* after) {
  alignas(64) int32_t sums[kChunkRows * kGroupPanels * kWidth];
  const IntegerOrder& order = *a.weights.order;
  const RoundedRows x(order, a.n_rows, a.scratch);
  const Panels m = panels_in(a.weights);
  const size_t x_stride = RoundedRows::stride(order), n_runs = static_cast<size_t>(order.n_runs),
               groups = static_cast<size_t>(order.n_groups),
               stride = static_cast<size_t>(panels) * kWidth,
               column = static_cast<size_t>(panel) * kWidth,
               n_out = static_cast<size_t>(a.weights.n_out),
               columns = n_out - column < stride ? n_out - column : stride,
               of_row = static_cast<size_t>(row) * n_runs;
  const uint8_t* const codes = m.codes + panel * m.panel_bytes;
  const int n_tiles = (rows + kTileRows - 1) / kTileRows;
  const int widest = panels_of<kParts>(rows / n_tiles);
  const auto line = [](int k) { return static_cast<size_t>(k / kStepK<kBits> * kLine); };
  __builtin_memset(sums, 0, sizeof(int32_t) * static_cast<size_t>(rows) * stride);
  for (int i = 0; i < order.n_runs; ++i) {
    const Run run = order.runs[i];
    const size_t of_group = (panel * groups + static_cast<size_t>(run.group)) * kWidth;
    RunArgs args{.scale = m.scale + of_group,
                 .zero = order.has_zeros ? m.zero + of_group : nullptr,
                 .scale_step = groups * kWidth,
                 .any_zero = 1 << (kBits - 1),
                 .x_scale = x.scale + of_row + i,
                 .x_sum = x.sum + of_row + i,
                 .n_runs = n_runs};
    for (int k = run.begin; k < run.begin + run.n; k += kBlock) {
      const int left = run.begin + run.n - k, n = left < kBlock ? left : kBlock;
      const uint8_t* next = k + n < order.depth ? codes + line(k + n) : after;
      size_t asked = 0;
      for (int p = 0; p < panels;) {
        if (p % kStreams == 0) asked = 0;
        const bool wide = panels - p >= widest;
        const int across = wide ? widest : 1;
        int first = 0;
        for (int t = 0; t < n_tiles; ++t) {
          const int last = rows * (t + 1) / n_tiles, tile_rows = last - first;
          for (int q = p; q < p + across;) {
            // Other tiles of these rows may be narrower.
            const bool fits = p + across - q >= panels_of<kParts>(tile_rows);
            const int width = fits ? panels_of<kParts>(tile_rows) : 1;
            const char* fetch = reinterpret_cast<const char*>(codes);
            size_t fetch_step = 0;
            if (next != nullptr) {
              fetch = reinterpret_cast<const char*>(next) +
                      p / kStreams * kStreams * m.panel_bytes + line(n) * asked / (kStreams * rows);
              fetch_step = size_t{kLine} * tile_rows / rows;
            }
            asked += static_cast<size_t>(width) * tile_rows;
            const int8_t* from[kParts];
            for (int part = 0; part < kParts; ++part) {
              from[part] = x.part[part] + static_cast<size_t>(row + first) * x_stride + k;
            }
            RunArgs mine = args;
            mine.scale += q * mine.scale_step;
            if (mine.zero != nullptr) mine.zero += q * mine.scale_step;
            mine.x_scale += first * n_runs;
            mine.x_sum += first * n_runs;
            tile_of<kBits, kParts>(tile_rows, fits)(
                from, x_stride, codes + q * m.panel_bytes + line(k), m.panel_bytes, n,
                sums + first * stride + q * kWidth, stride, mine, fetch, fetch_step);
            q += width;
          }
          first = last;
        }
        p += across;
      }
    }
    if (i + 1 < order.n_runs && order.runs[i + 1].segment == run.segment) continue;
    // The end of a segment.
    float* const to = a.apart ? a.out + static_cast<size_t>(run.segment) * a.n_rows * n_out : a.out;
    for (int r = 0; r < rows; ++r) {
      alignas(64) float totals[kGroupPanels * kWidth];
      if constexpr (kParts == 1) {
        __builtin_memset(totals, 0, sizeof totals);
        for (int p = 0; p < panels; ++p) {
          end_run(args, r, p, load_ints(sums + r * stride + kWidth * p), totals + kWidth * p);
        }
      } else {
        __builtin_memcpy(totals, sums + r * stride, sizeof(float) * stride);
      }
      float* const out = to + (row + r) * n_out + column;
      if (run.segment == 0 || a.apart) {
        __builtin_memcpy(out, totals, sizeof(float) * columns);
      } else {
        for (size_t c = 0; c < columns; ++c) out[c] = out[c] + totals[c];
      }
    }
    __builtin_memset(sums, 0, sizeof(int32_t) * static_cast<size_t>(rows) * stride);
  }
}

template <int kBits, int kParts>
void matmul_of(const MatmulArgs& a, int part, int parts) {
  const int64_t n_panels = (static_cast<int64_t>(a.weights.n_out) + kWidth - 1) / kWidth;
  const size_t panel_bytes = panels_in(a.weights).panel_bytes;
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  const Share share = share_of(n_panels, part, parts);
  for (int64_t panel = share.begin; panel < share.end; panel += kGroupPanels) {
    const int64_t left = share.end - panel;
    const uint8_t* codes = static_cast<const uint8_t*>(a.weights.data) + panel * panel_bytes;
    const uint8_t* next = left > kGroupPanels ? codes + kGroupPanels * panel_bytes : nullptr;
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int first = static_cast<int>(int64_t{a.n_rows} * chunk / n_chunks);
      const int last = static_cast<int>(int64_t{a.n_rows} * (chunk + 1) / n_chunks);
      block<kBits, kParts>(a, panel, left < kGroupPanels ? static_cast<int>(left) : kGroupPanels,
                           first, last - first, chunk + 1 < n_chunks ? codes : next);
    }
  }
}

}  // namespace

void multiply_codes(const MatmulArgs& a, int part, int parts) {
  const bool eight = a.weights.order->bits == 8;
  if (a.weights.order->x_bits == 8) {
    return eight ? matmul_of<8, 1>(a, part, parts) : matmul_of<4, 1>(a, part, parts);
  }
  return eight ? matmul_of<8, 2>(a, part, parts) : matmul_of<4, 2>(a, part, parts);
}

#if !SPECD_VNNI
void round_rows(const MatmulArgs& a, int part, int parts) {
  const IntegerOrder& order = *a.weights.order;
  const RoundedRows to(order, a.n_rows, a.scratch);
  const size_t stride = RoundedRows::stride(order), n_in = static_cast<size_t>(a.weights.n_in);
  const float limit = order.x_bits == 8 ? 127.0f : 127.0f * 256.0f;
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const float* const x = a.x + r * n_in;
    for (int i = 0; i < order.n_runs; ++i) {
      const Run run = order.runs[i];
      const int32_t* const source = order.source + run.begin;
      uint32_t largest = 0;  // as bits, which order magnitudes and put infinities and NaNs last
      for (int k = 0; k < run.n; ++k) {
        const uint32_t magnitude = source[k] < 0 ? 0 : bits_of(x[source[k]]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
      const float m = from_bits(largest);
      const bool is_finite = largest < 0x7f800000u, is_zero = m < 0x1p-100f;
      const float inverse = is_finite && !is_zero ? limit / m : 0.0f;
      int32_t sum = 0;
      for (int k = 0; k < run.n; ++k) {
        const float scaled = source[k] < 0 || !is_finite ? 0.0f : x[source[k]] * inverse;
        // Adding and subtracting 1.5 * 2^23 rounds to nearest even; its lower bits are the integer.
        const int32_t q = static_cast<int32_t>(bits_of(scaled + 0x1.8p23f) - bits_of(0x1.8p23f));
        sum += q;
        const size_t at = static_cast<size_t>(r) * stride + static_cast<size_t>(run.begin + k);
        if (order.x_bits == 8) {
          to.part[0][at] = static_cast<int8_t>(q);
        } else {
          const int8_t lower = static_cast<int8_t>(static_cast<uint8_t>(q));
          to.part[0][at] = static_cast<int8_t>((q - lower) / 256);
          to.part[1][at] = lower;
        }
      }
      const size_t at =
          static_cast<size_t>(r) * static_cast<size_t>(order.n_runs) + static_cast<size_t>(i);
      to.scale[at] = is_finite ? (is_zero ? 0.0f : m / limit) : from_bits(0x7fc00000u);
      to.sum[at] = sum;
    }
  }
}

void pack_codes(const PackArgs& a, int part, int parts) {
  const IntegerOrder& order = *a.packed.order;
  const Panels m = panels_in(a.packed);
  const bool eight = order.bits == 8;
  const size_t source_stride =
      static_cast<size_t>(a.source_stride == 0 ? int64_t{a.packed.n_in} : a.source_stride);
  const size_t groups = static_cast<size_t>(order.n_groups);
  const int32_t end = a.column_begin + a.n_rows;
  const int32_t filled =
      end == a.packed.n_out ? (end + kPaddedColumns - 1) / kPaddedColumns * kPaddedColumns : end;
  const int32_t first_panel = a.column_begin / kWidth;
  const Share share = share_of((filled + kWidth - 1) / kWidth - first_panel, part, parts);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const size_t panel = static_cast<size_t>(first_panel + i);
    uint8_t* const codes = const_cast<uint8_t*>(m.codes) + panel * m.panel_bytes;
    float* const scale = const_cast<float*>(m.scale) + panel * groups * kWidth;
    uint8_t* const zero = const_cast<uint8_t*>(m.zero) + panel * groups * kWidth;
    for (size_t c = 0; c < kWidth; ++c) {
      const int32_t column = static_cast<int32_t>(panel) * kWidth + static_cast<int32_t>(c);
      if (column < a.column_begin || column >= filled) continue;
      const bool is_padding = column >= end;
      const size_t row = static_cast<size_t>(column - a.column_begin);
      const uint8_t* const from =
          static_cast<const uint8_t*>(a.source) + (is_padding ? 0 : row * source_stride);
      for (int32_t k = 0; k < order.depth; ++k) {
        const uint8_t code = is_padding || order.source[k] < 0 ? 0 : from[order.source[k]];
        if (eight) {
          codes[(static_cast<size_t>(k / 4) * kWidth + c) * 4 + static_cast<size_t>(k % 4)] = code;
        } else {
          uint8_t& pair =
              codes[(static_cast<size_t>(k / 8) * kWidth + c) * 4 + static_cast<size_t>(k % 4)];
          pair = static_cast<uint8_t>(k % 8 < 4 ? code : pair | code << 4);
        }
      }
      for (size_t g = 0; g < groups; ++g) {
        scale[g * kWidth + c] = is_padding ? 0.0f : a.scale[row * groups + g];
        if (order.has_zeros) zero[g * kWidth + c] = is_padding ? 0 : a.zero[row * groups + g];
      }
    }
  }
}
#endif

}  // namespace specd::kernels::SPECD_ISA
