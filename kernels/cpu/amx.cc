// The matmul of codes that are integers (codes.h), by tiles of Intel's AMX: one instruction multiplies 16 rows of
// x by 16 columns along 64 k. The sums are integers, so a row has the bits that integers.cc gives it.
//
// The lines of a panel of 8 bits are rows of a tile as they are. Codes of 4 bits are unpacked to such lines, and x
// of 16 bits is in two bytes, each with its own sums:
//   sum of x * code = 256 * (sum of high * code) + (sum of low * code)
//
// The tiles, of which each has at most 16 rows of 64 bytes:
//   0 to 3   sums [row of x][column], of four panels, or high and low of two
//   4, 5     x [row][k], the high byte and the low one
//   6, 7     codes [k / 4][column][4], of a panel and the next
#include "kernels/cpu/code_tiles.h"

namespace specd::kernels::SPECD_ISA {
namespace {

constexpr int kTileRows = 16;
constexpr int kX = 4, kCodes = 6;

// Assembly: GCC 12 drops the stores of a configuration before its intrinsic, and knows of no memory that tiles read.
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
SPECD_INLINE void set_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
SPECD_INLINE void release_tiles() { asm volatile("tilerelease"); }
template <int kTile>
SPECD_INLINE void clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
SPECD_INLINE void load_tile(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
SPECD_INLINE void store_tile(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
// Adds x, signed or not, times codes, which are not.
template <bool kIsSigned, int kSum, int kXTile, int kCodeTile>
SPECD_INLINE void add_product() {
  if constexpr (kIsSigned) {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kXTile), "i"(kCodeTile));
  } else {
    asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kXTile), "i"(kCodeTile));
  }
}

constexpr int kStep = 64;  // k of a tile

// Tiles of `rows` rows of x.
SPECD_INLINE void set_shapes(int rows) {
  Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = static_cast<uint8_t>(tile < kCodes ? rows : kTileRows);
    shapes.bytes[tile] = kLine;
  }
  set_shapes(shapes);
}

// The codes of a tile: each line of 4 bits has 8 k, and becomes two lines.
SPECD_INLINE void unpack(const uint8_t* from, uint8_t* to) {
  const __m512i mask = _mm512_set1_epi8(0x0f);
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows / 2; ++i) {
    const __m512i line = _mm512_loadu_si512(from + i * kLine);
    _mm512_store_si512(to + 2 * i * kLine, _mm512_and_si512(line, mask));
    _mm512_store_si512(to + (2 * i + 1) * kLine,
                       _mm512_and_si512(_mm512_srli_epi16(line, 4), mask));
  }
}

// At most kTileRows rows by at most kStreams panels.
struct Area {
  const RoundedRows* x;
  const CodeOrder* order;
  size_t row, x_stride;
  int rows, panels;
  const uint8_t* codes;  // of the first panel, as below
  size_t panel_bytes;
  const float* scale;
  const uint8_t* zero;  // or null
  size_t scale_step;
  size_t panels_left;  // from the first to the end of the matrix
  float* totals;
  size_t totals_stride;
};

// The sums of a run, [bytes of x][row][column], are scaled and added to the totals of a panel.
template <int kBytes>
SPECD_INLINE void end_run(const Area& a, int run, int panel, const int32_t* sums) {
  const size_t of_group = static_cast<size_t>(a.order->runs[run].group) * kWidth +
                          static_cast<size_t>(panel) * a.scale_step;
  const F32x16 scale = load(a.scale + of_group);
  // Of the panel that has this place in the next area.
  if (static_cast<size_t>(panel) + kStreams < a.panels_left) {
    prefetch_near(a.scale + of_group + kStreams * a.scale_step);
    if (a.zero != nullptr) prefetch_near(a.zero + of_group + kStreams * a.scale_step);
  }
  const I32x16 zero = a.zero == nullptr ? I32x16{} : widen_bytes(a.zero + of_group);
  size_t of_run = a.row * static_cast<size_t>(a.order->n_runs) + static_cast<size_t>(run);
  float* total = a.totals + panel * kWidth;
  for (int r = 0; r < a.rows; ++r) {
    const uint32_t* const of_row = reinterpret_cast<const uint32_t*>(sums) + r * kWidth;
    I32x16 sum = load_int(of_row);
    if constexpr (kBytes == 2) {
      sum = add(shift_left<8>(sum), load_int(of_row + kTileRows * kWidth));
    }
    const I32x16 start = set1_int(static_cast<uint32_t>(a.x->start[of_run]));
    sum = add(sum, a.zero == nullptr ? start : mul(zero, start));
    store(total, fma(to_float(sum), mul(set1(a.x->scale[of_run]), scale),
                     run == 0 ? set1(0.0f) : load(total)));
    of_run += static_cast<size_t>(a.order->n_runs);
    total += a.totals_stride;
  }
}

// `ahead` is what this thread reads when it has read kLead bytes of each panel, and goes on so.
template <int kBits, int kBytes>
SPECD_INLINE void multiply_area(const Area& a, Place& ahead) {
  constexpr int kWide = 4 / kBytes;  // panels at once
  alignas(64) int32_t sums[4][kTileRows * kWidth];
  alignas(64) uint8_t unpacked[kBits == 4 ? kWide : 1][kTileRows * kLine];
  const int8_t* const x = a.x->integers + a.row * a.x_stride;
  constexpr size_t kStepBytes = kStep * 2 * kBits;
  for (int i = 0; i < a.order->n_runs; ++i) {
    const Run run = a.order->runs[i];
    Place next = ahead;
    for (int first = 0; first < a.panels; first += kWide) {
      const int panels = a.panels - first;
      next = ahead;
      clear<0>();
      clear<1>();
      clear<2>();
      clear<3>();
      for (int k = run.begin; k < run.begin + run.n; k += kStep) {
        load_tile<kX>(x + k, a.x_stride);
        if constexpr (kBytes == 2) load_tile<kX + 1>(x + a.order->depth + k, a.x_stride);
        const uint8_t* const codes = a.codes + static_cast<size_t>(first) * a.panel_bytes +
                                     static_cast<size_t>(k) * (2 * kBits);
        const auto add_panel = [&]<int kPanel>() __attribute__((always_inline)) {
          if (kPanel >= panels) return;
          const uint8_t* lines = codes + kPanel * a.panel_bytes;
          if constexpr (kBits == 4) {
            unpack(lines, unpacked[kPanel]);
            lines = unpacked[kPanel];
          }
          load_tile<kCodes + kPanel % 2>(lines, kLine);
          add_product<true, kPanel * kBytes, kX, kCodes + kPanel % 2>();
          if constexpr (kBytes == 2) {
            add_product<false, kPanel * kBytes + 1, kX + 1, kCodes + kPanel % 2>();
          }
          const size_t panel = static_cast<size_t>(first + kPanel);
          if (panel >= next.now.panels) return;
          const uint8_t* const at = next.now.codes + panel * next.now.panel_bytes + next.at;
          for (size_t byte = 0; byte < kStepBytes; byte += kLine) prefetch_near(at + byte);
        };
        add_panel.template operator()<0>();
        add_panel.template operator()<1>();
        if constexpr (kWide == 4) {
          add_panel.template operator()<2>();
          add_panel.template operator()<3>();
        }
        // What was prefetched behind the end of a panel is not the beginning of the next group.
        const size_t rest = next.now.panel_bytes - next.at;
        advance(next, kStepBytes < rest ? kStepBytes : rest);
      }
      store_tile<0>(sums[0], kLine);
      store_tile<1>(sums[1], kLine);
      store_tile<2>(sums[2], kLine);
      store_tile<3>(sums[3], kLine);
      for (int p = 0; p < kWide && p < panels; ++p) {
        end_run<kBytes>(a, i, first + p, sums[p * kBytes]);
      }
    }
    ahead = next;
  }
}

// TSan does not see what tiles read and write.
template <int kBits, int kBytes>
__attribute__((no_sanitize("thread"))) void multiply(const MatmulArgs& args, int part, int parts) {
  alignas(64) float own_totals[kTileRows * kSumsOfRow];
  const CodeOrder& order = *args.weights.order;
  const RoundedRows x(order, args.n_rows, args.scratch);
  const Panels m = panels_in(args.weights);
  const size_t n_out = static_cast<size_t>(args.weights.n_out);
  const Share share = panels_of_part(args.weights, part, parts);
  Stretch after = {};
  if (args.next != nullptr && args.next->order != nullptr) {
    after = stretch_of(*args.next, panels_of_part(*args.next, part, parts));
  }
  Area area = {};
  area.x = &x;
  area.order = &order;
  area.x_stride = RoundedRows::stride(order);
  area.panel_bytes = m.panel_bytes;
  area.scale_step = static_cast<size_t>(order.n_groups) * kWidth;
  Place ahead{stretch_of(args.weights, share), after, 0};
  advance(ahead, kLead);
  const int n_tiles = (args.n_rows + kTileRows - 1) / kTileRows;
  int rows_of_shapes = 0;
  for (int64_t panel = share.begin; panel < share.end; panel += kStreams) {
    const size_t first = static_cast<size_t>(panel), column = first * kWidth,
                 panels = static_cast<size_t>(share.end - panel < kStreams ? share.end - panel
                                                                           : kStreams),
                 padded = panels * kWidth,
                 columns = n_out - column < padded ? n_out - column : padded;
    const bool in_place = !kIsUnderTsan && order.n_runs == 1 && columns == padded;
    area.panels = static_cast<int>(panels);
    area.codes = m.codes + first * m.panel_bytes;
    area.panels_left = m.n - first;
    area.scale = m.scale + first * area.scale_step;
    area.zero = order.has_zeros ? m.zero + first * area.scale_step : nullptr;
    area.totals_stride = in_place ? n_out : padded;
    for (int tile = 0; tile < n_tiles; ++tile) {
      const int64_t row = int64_t{args.n_rows} * tile / n_tiles,
                    end = int64_t{args.n_rows} * (tile + 1) / n_tiles;
      area.row = static_cast<size_t>(row);
      area.rows = static_cast<int>(end - row);
      float* const out = args.out + area.row * n_out + column;
      area.totals = in_place ? out : own_totals;
      if (area.rows != rows_of_shapes) set_shapes(area.rows);
      rows_of_shapes = area.rows;
      // The first tile reads memory; the others read the same from a cache, the second one up to 32,768 k of 8 bits.
      Place again{{area.codes, panels, m.panel_bytes}, {}, 0};
      advance(again, kLead);
      multiply_area<kBits, kBytes>(area, tile == 0 ? ahead : again);
      if (in_place) continue;
      for (int r = 0; r < area.rows; ++r) {
        __builtin_memcpy(out + r * n_out, own_totals + r * padded, sizeof(float) * columns);
      }
    }
  }
  if (rows_of_shapes != 0) release_tiles();  // so that a change of threads need not save them
}

}  // namespace

bool takes(const CodeOrder& order, int32_t n_rows) {
  if (order.x_bits == 32 || n_rows < (order.x_bits == 8 ? 3 : 12)) return false;
  for (int i = 0; i < order.n_runs; ++i) {
    if (order.runs[i].n % kStep != 0) return false;
  }
  return true;
}

void multiply_integers(const MatmulArgs& a, int part, int parts) {
  const bool eight = a.weights.order->bits == 8;
  if (a.weights.order->x_bits == 8) {
    return eight ? multiply<8, 1>(a, part, parts) : multiply<4, 1>(a, part, parts);
  }
  return eight ? multiply<8, 2>(a, part, parts) : multiply<4, 2>(a, part, parts);
}

}  // namespace specd::kernels::SPECD_ISA
