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
  const __m512i mask = _mm512_set1_epi16(static_cast<int16_t>(0xbf80)), w = _mm512_loadu_si512(p);
  const auto widen = [&](const __m512i words, F32x16& first, F32x16& second)
      __attribute__((always_inline)) {
    const __m512i h = _mm512_and_si512(_mm512_srai_epi16(words, 1), mask);
    first = {_mm512_cvtph_ps(_mm512_castsi512_si256(h))};
    second = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))};
  };
  widen(_mm512_slli_epi16(w, 8), to[0], to[2]);
  widen(w, to[1], to[3]);
}
#endif

struct Float8 {
  using Sum = float;
  using Sums = F32x16;
  using Factor = float;
  static constexpr int kStepK = kLineK, kXOfLine = kLineK;
  static constexpr bool kCuts = true;
  // Sums in registers, of 16 columns each: 16 with AVX-512, otherwise 4.
  static constexpr int kTileRows = SPECD_ISA_LEVEL == 2 ? 8 : 4;
  static constexpr int panels_of(int rows) {
    return panels_within((SPECD_ISA_LEVEL == 2 ? 16 : 4) / rows);
  }

  SPECD_INLINE const float* x_at(const Group& g, const Block& b) {
    return g.x->value_at(g.row, static_cast<size_t>(b.k));
  }
  SPECD_INLINE size_t x_stride(const Group&) { return RoundedRows::kFloatStride; }
  SPECD_INLINE F32x16 load_sums(const float* p) { return load(p); }
  SPECD_INLINE void store_sums(float* p, const F32x16& sums) { store(p, sums); }

  template <int kRows, int kPanels>
  SPECD_INLINE void add_line(const float* x, size_t x_stride, const uint8_t* w, size_t panel_bytes,
                             F32x16 (&sum)[kRows][kPanels]) {
    F32x16 weights[kPanels][kLineK];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) widen_line(w + p * panel_bytes, weights[p]);
#pragma GCC unroll 4
    for (int k = 0; k < kLineK; ++k) {
      each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
        sum[r][p] = fma(set1(x[r * x_stride + k]), weights[p][k], sum[r][p]);
      });
    }
  }

  SPECD_INLINE F32x16 first_sum(const Group&, size_t, const Run&, int, int) { return set1(0.0f); }
  SPECD_INLINE F32x16 scale_of_row(const Group&, size_t, int) { return set1(1.0f); }
  SPECD_INLINE F32x16 total(const F32x16& sum, const F32x16&, const F32x16& scale,
                            const F32x16& before) {
    return fma(sum, scale, before);
  }
};

}  // namespace

void multiply_float8(const MatmulArgs& a, int part, int parts) {
  matmul_of_codes<Float8>(a, part, parts);
}

}  // namespace specd::kernels::SPECD_ISA
