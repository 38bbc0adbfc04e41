// The matmul of codes that are integers (codes.h): products of bytes are added in groups of four k, and a run
// ends with one multiply-add per output.
//
// Compiled once more for processors with AVX-512 VNNI (SPECD_VNNI), whose dpbusd multiplies 64 bytes
// and adds them in one instruction. The sums are integers, so every tiling gives the same bits.
//
// A panel is 16 columns: [depth / 4][16][4] bytes of 8 bits, or [depth / 8][16][4] bytes that have
// k 0 to 3 in their low halves and k 4 to 7 in their high halves.
#include "kernels/cpu/code_tiles.h"

#ifndef SPECD_VNNI
#define SPECD_VNNI 0
#endif

namespace specd::kernels::SPECD_ISA {
namespace {

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

// use(r, p) for the rows and panels of a tile, unrolled.
template <int kRows, int kPanels, typename Use>
SPECD_INLINE void each_output(const Use& use) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) use(r, p);
  }
}

// Starts the sums of a run at -zero * x_sum, so that they end as sums of q * (code - zero).
template <int kRows, int kPanels>
SPECD_INLINE void start_run(const TileArgs& a, int run, int bits, I32x16 (&first)[kRows][kPanels]) {
  const int32_t* const x_sum = a.x->sum + a.of_run + run;
  if (a.zero == nullptr) {
    each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
      // Every zero is 2^(bits - 1).
      const uint32_t offset = static_cast<uint32_t>(x_sum[r * a.run_stride]) << (bits - 1);
      first[r][p] = p == 0 ? set1_int(0u - offset) : first[r][0];
    });
    return;
  }
  I32x16 of_column[kPanels];
  const uint8_t* const zero = a.zero + a.block.runs[run].group * kWidth;
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    of_column[p] = sub(set1_ints(0), widen_bytes(zero + p * a.scale_step));
  }
  each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
    first[r][p] = multiply(of_column[p], set1_ints(x_sum[r * a.run_stride]));
  });
}

// The end of a run: total = fma(float(exact sum), x_scale * scale, total).
template <int kRows, int kPanels, typename SumOf>
SPECD_INLINE void end_run(const TileArgs& a, int run, const SumOf& sum_of,
                          F32x16 (&total)[kRows][kPanels]) {
  const float* const scales = a.scale + a.block.runs[run].group * kWidth;
  F32x16 scale[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) scale[p] = load(scales + p * a.scale_step);
  const float* const x_scale = a.x->scale + a.of_run + run;
  each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
    const F32x16 scale_of_row = set1(x_scale[r * a.run_stride]);
    total[r][p] = fma(to_float(sum_of(r, p)), mul(scale_of_row, scale[p]), total[r][p]);
  });
}

// Codes of kBits by x of kParts bytes.
template <int kBits, int kParts>
struct Integers {
  using Sum = int32_t;
  static constexpr int kStepK = kBits == 8 ? 4 : 8;
  static constexpr int kGroupPanels = 16;
  static constexpr int kBlock = kParts == 1 ? 512 : 256;
  static constexpr int kLead = kParts == 1 ? kBlock : 0;
  // With two parts no run is cut, so that both kinds of its sums stay in registers.
  static constexpr bool kCuts = kParts == 1;
  // Sums in registers, of 16 columns each: 16 with AVX-512, otherwise 4.
  static constexpr int kTileRows = SPECD_ISA_LEVEL == 2 ? 8 / kParts : 2;
  static constexpr int panels_of(int rows) {
    return panels_within((SPECD_ISA_LEVEL == 2 ? 16 : 4) / (rows * kParts));
  }

  // TSan does not instrument a tile, as in matmul.cc.
  template <int kRows, int kPanels>
  __attribute__((noinline, no_sanitize("thread"))) static void tile(const TileArgs& a) {
    const int8_t* from[kParts];
    const uint8_t* w = a.codes;
    const uint8_t* fetch = a.fetch;
    int32_t* const sums = static_cast<int32_t*>(a.sums);
    const size_t x_stride = a.x_stride, panel_bytes = a.panel_bytes;
#pragma GCC unroll 2
    for (int q = 0; q < kParts; ++q) from[q] = a.x->part[q] + a.row * x_stride + a.block.k;
    const auto sum_at = [&](int r, int p) __attribute__((always_inline)) {
      return sums + r * a.stride + kWidth * p;
    };
    const auto total_at = [&](int r, int p) __attribute__((always_inline)) {
      return a.totals + r * a.totals_stride + kWidth * p;
    };
    // With x of one part a matrix has one run. With several runs, totals stay in registers during a block.
    const int n_runs = kParts == 1 ? 1 : a.block.n_runs;
    const bool starts = kParts == 2 || a.block.starts, ends = kParts == 2 || a.block.ends;
    F32x16 total[kRows][kPanels];
    each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
      total[r][p] = kParts == 2 && a.has_totals ? load(total_at(r, p)) : set1(0.0f);
    });
    for (int run = 0; run < n_runs; ++run) {
      I32x16 acc[kParts][kRows][kPanels];
      I32x16(&last)[kRows][kPanels] = acc[kParts - 1];
      if (starts) {
        if constexpr (kParts == 2) {
          each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
            acc[0][r][p] = set1_ints(0);
          });
        }
        start_run<kRows, kPanels>(a, run, kBits, last);
      } else {
        each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
          last[r][p] = load_ints(sum_at(r, p));
        });
      }
      each_line<Integers, kPanels>(
          a, run, fetch, [&]() __attribute__((always_inline)) {
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
                    acc[q][r][p] = add_products(acc[q][r][p], four[p], from[q] + r * x_stride + k);
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
            for (int q = 0; q < kParts; ++q) from[q] += kStepK;
            w += kLine;
          });
      if (ends) {
        end_run<kRows, kPanels>(
            a, run,
            [&](int r, int p) __attribute__((always_inline)) {
              if constexpr (kParts == 1) {
                return last[r][p];
              } else {
                return add(shift_left<8>(acc[0][r][p]), last[r][p]);
              }
            },
            total);
      } else {
        each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
          store_int(sum_at(r, p), last[r][p]);
        });
      }
    }
    if (ends) {
      each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
        store(total_at(r, p), total[r][p]);
      });
    }
  }
};

}  // namespace

void multiply_integers(const MatmulArgs& a, int part, int parts) {
  const bool eight = a.weights.order->bits == 8;
  if (a.weights.order->x_bits == 8) {
    return eight ? matmul_of_codes<Integers<8, 1>>(a, part, parts)
                 : matmul_of_codes<Integers<4, 1>>(a, part, parts);
  }
  return eight ? matmul_of_codes<Integers<8, 2>>(a, part, parts)
               : matmul_of_codes<Integers<4, 2>>(a, part, parts);
}

}  // namespace specd::kernels::SPECD_ISA
