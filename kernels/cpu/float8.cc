// The matmul of codes that are E4M3FN (codes.h): one chain of fused multiply-adds along k per row, column
// and run.
//
// The seven bits of exponent and mantissa, moved to those of a float16, are the value times 2^-8, also for
// subnormals; the processor widens float16 exactly. A panel is [depth / 2][16][2] bytes: an even k is in
// the lower half of a column's 16 bits and the next k in the upper half, so that a line is widened without
// moving bytes between columns.
#include "kernels/cpu/code_tiles.h"

namespace specd::kernels::SPECD_ISA {
namespace {

constexpr int kLineK = 4;  // k of a line

// The codes of a line, times 2^-8.
#if SPECD_ISA_LEVEL == 0
SPECD_INLINE void widen_line(const uint8_t* p, F32x16* to) {
  for (int k = 0; k < kLineK; ++k) {
    for (int c = 0; c < kWidth; ++c) {
      const uint32_t code = p[(k / 2 * kWidth + c) * 2 + k % 2];
      to[k].v[c] = widen_f16(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7));
    }
  }
}
#elif SPECD_ISA_LEVEL == 1
SPECD_INLINE void widen_line(const uint8_t* p, F32x16* to) {
  const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  const auto widen = [&](const __m256i w) __attribute__((always_inline)) {
    const __m256i h = _mm256_and_si256(_mm256_srai_epi16(w, 1), mask);
    return F32x16{_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                  _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
  };
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i);
    to[2 * i] = widen(_mm256_slli_epi16(w, 8));
    to[2 * i + 1] = widen(w);
  }
}
#else
SPECD_INLINE void widen_line(const uint8_t* p, F32x16* to) {
  const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  const auto widen = [&](const __m256i w) __attribute__((always_inline)) {
    return F32x16{_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(w, 1), mask))};
  };
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i);
    to[2 * i] = widen(_mm256_slli_epi16(w, 8));
    to[2 * i + 1] = widen(w);
  }
}
#endif

struct Float8 {
  using Sum = float;
  static constexpr int kStepK = kLineK;
  static constexpr bool kCuts = true;
  // Sums in registers, of 16 columns each: 16 with AVX-512, otherwise 4.
  static constexpr int kTileRows = SPECD_ISA_LEVEL == 2 ? 8 : 4;
  static constexpr int panels_of(int rows) {
    return panels_within((SPECD_ISA_LEVEL == 2 ? 16 : 4) / rows);
  }

  // TSan does not instrument a tile, as in matmul.cc.
  template <int kRows, int kPanels>
  __attribute__((noinline, no_sanitize("thread"))) static void tiles(const TileArgs& a) {
    const float* of_tile = a.x->value_at(a.row, static_cast<size_t>(a.block.k));
    const size_t panel_bytes = a.panel_bytes;
    float *sums = static_cast<float*>(a.sums), *totals = a.totals;
    Fetch fetch{a.fetch, 1};
    for (int t = 0; t < a.tiles; ++t) {
      const float* x = of_tile;
      const uint8_t* w = a.codes;
      for (int i = 0; i < a.block.n_runs; ++i) {
        const Run& run = a.block.runs[i];
        F32x16 sum[kRows][kPanels];
        each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
          sum[r][p] = a.block.starts ? set1(0.0f) : load(sums + r * a.stride + kWidth * p);
        });
        each_line<Float8, kPanels>(
            a, i, fetch, [&]() __attribute__((always_inline)) {
              F32x16 weights[kPanels][kLineK];
#pragma GCC unroll 4
              for (int p = 0; p < kPanels; ++p) widen_line(w + p * panel_bytes, weights[p]);
#pragma GCC unroll 4
              for (int k = 0; k < kLineK; ++k) {
                each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
                  sum[r][p] =
                      fma(set1(x[r * RoundedRows::kFloatStride + k]), weights[p][k], sum[r][p]);
                });
              }
              x += kLineK;
              w += kLine;
            });
        if (a.block.ends) {
          if (t == 0) fetch_scales<kPanels>(a, run);
          const float* const scale = a.scale + run.group * kWidth;
          const bool is_first = !a.has_totals && i == 0;
          each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
            float* const total = totals + r * a.totals_stride + kWidth * p;
            store(total, fma(sum[r][p], load(scale + p * a.scale_step),
                             is_first ? set1(0.0f) : load(total)));
          });
        } else {
          each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
            store(sums + r * a.stride + kWidth * p, sum[r][p]);
          });
        }
      }
      of_tile += kRows * RoundedRows::kFloatStride;
      sums += kRows * a.stride;
      totals += kRows * a.totals_stride;
    }
  }
};

}  // namespace

void multiply_float8(const MatmulArgs& a, int part, int parts) {
  matmul_of_codes<Float8>(a, part, parts);
}

}  // namespace specd::kernels::SPECD_ISA
