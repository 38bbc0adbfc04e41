// The matmul of codes that are integers (codes.h): products are added as integers, and a run ends with one
// multiply-add per output.
//
// Compiled once more for processors with AVX-512 VNNI (SPECD_VNNI), whose dpbusd and dpwssd multiply 64 bytes
// or 32 words and add the products in one instruction. The sums are integers, so every tiling gives the same bits.
//
// A panel is 16 columns: [depth / 4][16][4] bytes of 8 bits, or [depth / 8][16][4] bytes that have
// k 0 to 3 in their low halves and k 4 to 7 in their high halves.
#include "kernels/cpu/code_tiles.h"

#ifndef SPECD_VNNI
#define SPECD_VNNI 0
#endif

namespace specd::kernels::SPECD_ISA {
namespace {

// 64 bytes, or 32 words of 16 bits: four or two factors of each column.
#if SPECD_ISA_LEVEL == 0
struct Factors {
  uint8_t v[64];
};
SPECD_INLINE Factors load_line(const uint8_t* p) {
  Factors b;
  __builtin_memcpy(b.v, p, sizeof b.v);
  return b;
}
// Of each word the bits from kShift on that the mask has.
template <int kShift, int kMask>
SPECD_INLINE Factors bits_of_words(const Factors& b) {
  Factors r;
  for (int i = 0; i < 64; i += 2) {
    const int word = (b.v[i] | b.v[i + 1] << 8) >> kShift & kMask;
    r.v[i] = static_cast<uint8_t>(word);
    r.v[i + 1] = static_cast<uint8_t>(word >> 8);
  }
  return r;
}
// sum + the products of the factors of each column and those at x.
template <int kXBits>
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Factors& codes, const int8_t* x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) {
    int32_t products = 0;
    if constexpr (kXBits == 8) {
      for (int k = 0; k < 4; ++k) products += int32_t{codes.v[4 * i + k]} * int32_t{x[k]};
    } else {
      int16_t factor[2];
      __builtin_memcpy(factor, x, sizeof factor);
      for (int k = 0; k < 2; ++k) products += int32_t{codes.v[4 * i + 2 * k]} * int32_t{factor[k]};
    }
    r.v[i] = sum.v[i] + static_cast<uint32_t>(products);
  }
  return r;
}
#else
SPECD_INLINE int32_t word_of(const int8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  return word;
}
#endif

#if SPECD_ISA_LEVEL == 1
struct Factors {
  __m256i lo, hi;
};
SPECD_INLINE Factors load_line(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
template <int kShift, int kMask>
SPECD_INLINE Factors bits_of_words(const Factors& b) {
  const Factors shifted = {_mm256_srli_epi16(b.lo, kShift), _mm256_srli_epi16(b.hi, kShift)};
  if constexpr (0xffff >> kShift == kMask) return shifted;
  const __m256i mask = _mm256_set1_epi16(kMask);
  return {_mm256_and_si256(shifted.lo, mask), _mm256_and_si256(shifted.hi, mask)};
}
template <int kXBits>
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Factors& codes, const int8_t* x) {
  const __m256i word = _mm256_set1_epi32(word_of(x));
  if constexpr (kXBits == 16) {
    return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(codes.lo, word)),
            _mm256_add_epi32(sum.hi, _mm256_madd_epi16(codes.hi, word))};
  }
  // maddubs would saturate at 16 bits: bytes of even and of odd k as 16 bits.
  const __m256i mask = _mm256_set1_epi16(0xff);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(word, 8), 8),
                odd = _mm256_srai_epi16(word, 8);
  const auto half = [&](const __m256i total, const __m256i b) __attribute__((always_inline)) {
    return _mm256_add_epi32(total,
                            _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(b, mask), even),
                                             _mm256_madd_epi16(_mm256_srli_epi16(b, 8), odd)));
  };
  return {half(sum.lo, codes.lo), half(sum.hi, codes.hi)};
}
#endif

#if SPECD_ISA_LEVEL == 2
struct Factors {
  __m512i v;
};
SPECD_INLINE Factors load_line(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
template <int kShift, int kMask>
SPECD_INLINE Factors bits_of_words(const Factors& b) {
  const __m512i shifted = _mm512_srli_epi16(b.v, kShift);
  if constexpr (0xffff >> kShift == kMask) return {shifted};
  return {_mm512_and_si512(shifted, _mm512_set1_epi16(kMask))};
}
template <int kXBits>
SPECD_INLINE I32x16 add_products(const I32x16& sum, const Factors& codes, const int8_t* x) {
  const __m512i word = _mm512_set1_epi32(word_of(x));
#if SPECD_VNNI
  if constexpr (kXBits == 8) return {_mm512_dpbusd_epi32(sum.v, codes.v, word)};
  return {_mm512_dpwssd_epi32(sum.v, codes.v, word)};
#else
  if constexpr (kXBits == 16) return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(codes.v, word))};
  const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(word, 8), 8),
                odd = _mm512_srai_epi16(word, 8);
  return {_mm512_add_epi32(
      sum.v,
      _mm512_add_epi32(_mm512_madd_epi16(_mm512_and_si512(codes.v, _mm512_set1_epi16(0xff)), even),
                       _mm512_madd_epi16(_mm512_srli_epi16(codes.v, 8), odd)))};
#endif
}
#endif

// Codes of kBits by x of kXBits. A line has kParts times the factors of one instruction: bytes, or with x of 16 bits
// words, for which x is in the order of place_of_word().
template <int kBits, int kXBits>
struct Integers {
  using Sum = int32_t;
  using Sums = I32x16;
  using Factor = int8_t;
  static constexpr int kParts = kXBits / kBits;
  static constexpr int kStepK = kBits == 8 ? 4 : 8, kXOfLine = 4 * kParts;
  static constexpr bool kCuts = kXBits == 8;
  // In registers, of 16 columns each.
  static constexpr int kSums = SPECD_VNNI ? 24 : SPECD_ISA_LEVEL == 2 ? 16 : 4;
  static constexpr int kTileRows = SPECD_VNNI ? 6 : SPECD_ISA_LEVEL == 2 ? 4 : 2;
  static constexpr int panels_of(int rows) { return panels_within(kSums / rows); }

  template <int kPart>
  SPECD_INLINE Factors part_of(const Factors& line) {
    if constexpr (kXBits == 16) {
      return bits_of_words<kBits * kPart, (1 << kBits) - 1>(line);
    } else if constexpr (kBits == 8) {
      return line;
    } else {
      return bits_of_words<kBits * kPart, 0x0f0f>(line);
    }
  }

  SPECD_INLINE const int8_t* x_at(const Group& g, const Block& b) {
    return g.x->integers + g.row * g.x_stride + b.k * (kXBits / 8);
  }
  SPECD_INLINE size_t x_stride(const Group& g) { return g.x_stride; }
  SPECD_INLINE I32x16 load_sums(const int32_t* p) {
    return load_int(reinterpret_cast<const uint32_t*>(p));
  }
  SPECD_INLINE void store_sums(int32_t* p, const I32x16& sums) { store_int(p, sums); }

  template <int kRows, int kPanels>
  SPECD_INLINE void add_line(const int8_t* x, size_t x_stride, const uint8_t* w, size_t panel_bytes,
                             I32x16 (&sum)[kRows][kPanels]) {
    Factors line[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) line[p] = load_line(w + p * panel_bytes);
    const auto add_part = [&]<int kPart>() __attribute__((always_inline)) {
      Factors part[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) part[p] = part_of<kPart>(line[p]);
      each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
        sum[r][p] = add_products<kXBits>(sum[r][p], part[p], x + r * x_stride + 4 * kPart);
      });
    };
    add_part.template operator()<0>();
    if constexpr (kParts > 1) add_part.template operator()<1>();
    if constexpr (kParts > 2) add_part.template operator()<2>();
    if constexpr (kParts > 3) add_part.template operator()<3>();
  }

  // -zero * (sum of q), so that a run ends with the sums of q * (code - zero).
  SPECD_INLINE I32x16 first_sum(const Group& g, size_t of_run, const Run& run, int r, int p) {
    const I32x16 start = set1_int(static_cast<uint32_t>(g.x->start[of_run + r * g.n_runs]));
    return g.zero == nullptr
               ? start
               : mul(widen_bytes(g.zero + run.group * kWidth + p * g.scale_step), start);
  }
  SPECD_INLINE F32x16 scale_of_row(const Group& g, size_t of_run, int r) {
    return set1(g.x->scale[of_run + r * g.n_runs]);
  }
  // fma(float(exact sum), x_scale * scale, total)
  SPECD_INLINE F32x16 total(const I32x16& sum, const F32x16& scale_of_row, const F32x16& scale,
                            const F32x16& before) {
    return fma(to_float(sum), mul(scale_of_row, scale), before);
  }
};

}  // namespace

void multiply_integers(const MatmulArgs& a, int part, int parts) {
  const bool eight = a.weights.order->bits == 8;
  if (a.weights.order->x_bits == 8) {
    return eight ? matmul_of_codes<Integers<8, 8>>(a, part, parts)
                 : matmul_of_codes<Integers<4, 8>>(a, part, parts);
  }
  return eight ? matmul_of_codes<Integers<8, 16>>(a, part, parts)
               : matmul_of_codes<Integers<4, 16>>(a, part, parts);
}

}  // namespace specd::kernels::SPECD_ISA
