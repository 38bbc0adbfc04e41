// What matrices of codes have in common (codes.h): packing them, and x in the packed order.
#include "kernels/cpu/code_tiles.h"

namespace specd::kernels::SPECD_ISA {

namespace {

constexpr int kChunk = RoundedRows::kFloatBlock;  // k that are put in order at once

// Whether the packed order is that of x, without padding.
bool is_in_order(const CodeOrder& order) {
  int32_t moved = 0;
  for (int32_t k = 0; k < order.depth; ++k) moved |= order.source[k] ^ k;
  return moved == 0;
}

// n <= kChunk values of a row in the packed order, from its place k: a pointer into x, or to `room` where they are
// gathered.
SPECD_INLINE const float* values_of(const CodeOrder& order, bool is_ordered, int k, int n,
                                    const float* x, float* room) {
  if (is_ordered) return x + k;
  const int32_t* const source = order.source + k;
  for (int i = 0; i < n; ++i) room[i] = source[i] < 0 ? 0.0f : x[source[i]];
  return room;
}

// As bits, which order magnitudes and put infinities and NaNs last.
SPECD_INLINE uint32_t largest_magnitude(const float* value, int n) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(value[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Rounds values; returns their sum. They are multiplied by `by`, or divided by it if kIsFixed. Words of 16 bits are in the
// order of place_of_word() for codes of kBits.
template <bool kIsFixed, int kBits, typename Integer>
SPECD_INLINE int32_t round_values(const float* value, int n, float by, Integer* __restrict to) {
  int32_t sum = 0;
  for (int k = 0; k < n; k += kRunGrain) {
#pragma GCC unroll 8
    for (int i = 0; i < kRunGrain; ++i) {
      const float v = value[k + (sizeof(Integer) == 1 ? i : place_of_word(kBits, i))];
      float scaled = kIsFixed ? v / by : v * by;
      if constexpr (kIsFixed) {
        scaled = scaled > -128.0f ? scaled : -128.0f;
        scaled = scaled < 127.0f ? scaled : 127.0f;
      }
      // Adding and subtracting 1.5 * 2^23 rounds to nearest even; its lower bits are the integer.
      const int32_t q = static_cast<int32_t>(bits_of(scaled + 0x1.8p23f) - bits_of(0x1.8p23f));
      sum += q;
      to[k + i] = static_cast<Integer>(q);
    }
  }
  return sum;
}

// As round_values() to 16 bits, but in two bytes, 256 * high + low, in the packed order. Used with AVX-512 alone.
[[maybe_unused]] SPECD_INLINE int32_t round_to_bytes(const float* value, int n, float by,
                                                     int8_t* __restrict high,
                                                     uint8_t* __restrict low) {
  int32_t sum = 0;
  for (int k = 0; k < n; ++k) {
    const int32_t q = static_cast<int32_t>(bits_of(value[k] * by + 0x1.8p23f) - bits_of(0x1.8p23f));
    sum += q;
    high[k] = static_cast<int8_t>(q >> 8);
    low[k] = static_cast<uint8_t>(q);
  }
  return sum;
}

// use(k, values, n) for the k of a run from its first, a chunk at a time.
template <typename Use>
SPECD_INLINE void each_chunk(const CodeOrder& order, bool is_ordered, const Run& run,
                             const float* x, const Use& use) {
  alignas(64) float room[kChunk];
  for (int k = 0; k < run.n; k += kChunk) {
    const int n = run.n - k < kChunk ? run.n - k : kChunk;
    use(k, values_of(order, is_ordered, run.begin + k, n, x, room), n);
  }
}

// In bytes: x of 16 bits for tiles (kernels/cpu/amx.cc).
template <int kXBits, bool kInBytes = false>
void round_row(const CodeOrder& order, bool is_ordered, const float* x, const RoundedRows& to,
               size_t row) {
  constexpr float kLimit = kXBits == 8 ? 127.0f : 127.0f * 256.0f;
  const bool is_fixed = kXBits == 8 && order.x_scale > 0;
  for (int i = 0; i < order.n_runs; ++i) {
    const Run run = order.runs[i];
    uint32_t largest = 0;
    each_chunk(
        order, is_ordered, run,
        x, [&](int, const float* value, int n) __attribute__((always_inline)) {
          const uint32_t of_chunk = largest_magnitude(value, n);
          largest = of_chunk > largest ? of_chunk : largest;
        });
    const float m = from_bits(largest);
    const bool is_finite = largest < 0x7f800000u, is_zero = !is_fixed && m < 0x1p-100f;
    int8_t* const integers = to.integers + row * RoundedRows::stride(order) +
                             static_cast<size_t>(run.begin) * (kInBytes ? 1 : kXBits / 8);
    int8_t* const low = kInBytes ? integers + order.depth : nullptr;
    const size_t bytes = static_cast<size_t>(run.n) * (kInBytes ? 1 : kXBits / 8);
    int32_t sum = 0;
    if (!is_finite || is_zero) {
      __builtin_memset(integers, 0, bytes);
      if constexpr (kInBytes) __builtin_memset(low, 0, bytes);
    } else {
      each_chunk(
          order, is_ordered, run,
          x, [&](int k, const float* value, int n) __attribute__((always_inline)) {
            if constexpr (kInBytes) {
              sum += round_to_bytes(value, n, kLimit / m, integers + k,
                                    reinterpret_cast<uint8_t*>(low) + k);
            } else if constexpr (kXBits == 16) {
              int16_t* const to16 = reinterpret_cast<int16_t*>(integers) + k;
              sum += order.bits == 8 ? round_values<false, 8>(value, n, kLimit / m, to16)
                                     : round_values<false, 4>(value, n, kLimit / m, to16);
            } else if (is_fixed) {
              sum += round_values<true, 8>(value, n, order.x_scale, integers + k);
            } else {
              sum += round_values<false, 8>(value, n, kLimit / m, integers + k);
            }
          });
    }
    const size_t of_run = row * static_cast<size_t>(order.n_runs) + static_cast<size_t>(i);
    const float own = is_zero ? 0.0f : is_fixed ? order.x_scale : m / kLimit;
    to.scale[of_run] = is_finite ? own : from_bits(0x7fc00000u);
    const uint32_t zero = order.has_zeros ? 1u : 1u << (order.bits - 1);
    to.start[of_run] = static_cast<int32_t>(0u - zero * static_cast<uint32_t>(sum));
  }
}

}  // namespace

void round_rows(const MatmulArgs& a, int part, int parts) {
  const CodeOrder& order = *a.weights.order;
  const RoundedRows to(order, a.n_rows, a.scratch);
  const Share share = share_of(a.n_rows, part, parts);
  if (share.begin == share.end) return;
  const bool is_ordered = is_in_order(order);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const float* const x = a.x + r * a.weights.n_in;
    const size_t row = static_cast<size_t>(r);
    if (order.x_bits == 8) {
      round_row<8>(order, is_ordered, x, to, row);
    } else if (order.x_bits == 16) {
      round_row<16>(order, is_ordered, x, to, row);
    } else {
      for (int k = 0; k < order.depth; k += kChunk) {
        const int n = order.depth - k < kChunk ? order.depth - k : kChunk;
        float* const room = to.value_at(row, static_cast<size_t>(k));
        const float* const value = values_of(order, is_ordered, k, n, x, room);
        if (value != room) __builtin_memcpy(room, value, sizeof(float) * static_cast<size_t>(n));
      }
    }
  }
}

#if SPECD_ISA_LEVEL == 2
void round_rows_to_bytes(const MatmulArgs& a, int part, int parts) {
  const CodeOrder& order = *a.weights.order;
  const RoundedRows to(order, a.n_rows, a.scratch);
  const Share share = share_of(a.n_rows, part, parts);
  if (share.begin == share.end) return;
  const bool is_ordered = is_in_order(order);
  for (int64_t r = share.begin; r < share.end; ++r) {
    round_row<16, true>(order, is_ordered, a.x + r * a.weights.n_in, to, static_cast<size_t>(r));
  }
}
#endif

void pack_codes(const PackArgs& a, int part, int parts) {
  const CodeOrder& order = *a.packed.order;
  const Panels m = panels_in(a.packed);
  const float scale_factor =
      order.x_bits == 32 ? 256.0f : 1.0f;  // a code is widened to value / 256
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
        const size_t at = static_cast<size_t>(k);
        if (order.x_bits == 32) {
          codes[(at / 2 * kWidth + c) * 2 + at % 2] = code;
        } else if (order.bits == 8) {
          codes[(at / 4 * kWidth + c) * 4 + at % 4] = code;
        } else {
          uint8_t& pair = codes[(at / 8 * kWidth + c) * 4 + at % 4];
          pair = static_cast<uint8_t>(at % 8 < 4 ? code : pair | code << 4);
        }
      }
      for (size_t g = 0; g < groups; ++g) {
        scale[g * kWidth + c] = is_padding ? 0.0f : a.scale[row * groups + g] * scale_factor;
        if (order.has_zeros) zero[g * kWidth + c] = is_padding ? 0 : a.zero[row * groups + g];
      }
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
