// What matrices of codes have in common (codes.h): packing them, and x in the packed order.
#include "kernels/cpu/code_tiles.h"

namespace specd::kernels::SPECD_ISA {

void round_rows(const MatmulArgs& a, int part, int parts) {
  const CodeOrder& order = *a.weights.order;
  const RoundedRows to(order, a.n_rows, a.scratch);
  const size_t stride = RoundedRows::stride(order), n_in = static_cast<size_t>(a.weights.n_in);
  const float limit = order.x_bits == 8 ? 127.0f : 127.0f * 256.0f;
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    const float* const x = a.x + r * n_in;
    if (order.x_bits == 32) {
      const int32_t block = RoundedRows::kFloatBlock;
      for (int32_t k = 0; k < order.depth; k += block) {
        const int32_t n = order.depth - k < block ? order.depth - k : block;
        const int32_t* const source = order.source + k;
        float* const value = to.value_at(static_cast<size_t>(r), static_cast<size_t>(k));
        for (int32_t i = 0; i < n; ++i) value[i] = source[i] < 0 ? 0.0f : x[source[i]];
      }
      continue;
    }
    for (int i = 0; i < order.n_runs; ++i) {
      const Run run = order.runs[i];
      const int32_t* const source = order.source + run.begin;
      uint32_t largest = 0;  // as bits, which order magnitudes and put infinities and NaNs last
      for (int k = 0; k < run.n; ++k) {
        const uint32_t magnitude = source[k] < 0 ? 0 : bits_of(x[source[k]]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
      const float m = from_bits(largest);
      const bool is_finite = largest<0x7f800000u, is_fixed = order.x_scale> 0,
                 is_zero = !is_fixed && m < 0x1p-100f;
      const float inverse = is_finite && !is_zero ? limit / m : 0.0f;
      int32_t sum = 0;
      for (int k = 0; k < run.n; ++k) {
        const float value = source[k] < 0 || !is_finite ? 0.0f : x[source[k]];
        float scaled = value * inverse;
        if (is_fixed) {
          scaled = value / order.x_scale;
          scaled = scaled < -128.0f ? -128.0f : scaled > 127.0f ? 127.0f : scaled;
        }
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
      const float own = is_zero ? 0.0f : is_fixed ? order.x_scale : m / limit;
      to.scale[at] = is_finite ? own : from_bits(0x7fc00000u);
      to.sum[at] = sum;
    }
  }
}

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
