// A matmul of codes apart from its arithmetic: the packed matrix, and the walk over it in tiles.
//
// The arithmetic is a Form, a struct in integers.cc or float8.cc:
//   Sum                      of a run so far: int32_t or float
//   kStepK                   k of a line
//   kGroupPanels             panels that all rows pass over before the next, a multiple of kStreams
//   kBlock                   at most so many k are multiplied for all panels of a group before the next k
//   kCuts                    whether runs are cut, without a lead at multiples of kBlock; otherwise none is longer than
//                            kBlock
//   kLead                    if one tile holds all rows, panels are read from end to end with this many k prefetched
//                            ahead; 0: in blocks all the same. Not 0 only where x of a row is contiguous and a matrix
//                            has one run
//   kTileRows                the most rows of a tile
//   panels_of(rows)          panels of a tile of so many rows: 1, 2 or 4
//   tile<rows, panels>(TileArgs)
//
// All panels of codes are followed by the scales, [panel][n_groups][16], and the zeros of the same shape.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "specd/kernels/matmul.h"

namespace specd::kernels::SPECD_ISA {

constexpr int kWidth = 16;      // columns of a panel
constexpr int kLine = 64;       // bytes that 16 columns have in one step
constexpr int kStreams = 4;     // lines that are prefetched at once; no tile has more panels
constexpr int kChunkRows = 48;  // rows whose sums stay in the cache
#ifdef __has_feature
constexpr bool kIsUnderTsan = __has_feature(thread_sanitizer);
#else
constexpr bool kIsUnderTsan = false;
#endif

// The most panels of a tile that has at most `fit` of them: a divisor of kStreams.
constexpr int panels_within(int fit) { return fit >= 4 ? 4 : fit >= 2 ? 2 : 1; }

struct Panels {
  const uint8_t* codes;
  const float* scale;
  const uint8_t* zero;
  size_t n, panel_bytes;
};
SPECD_INLINE Panels panels_in(const PackedMatrix& m) {
  const CodeOrder& order = *m.order;
  const size_t columns = (static_cast<size_t>(m.n_out) + kPaddedColumns - 1) / kPaddedColumns *
                         kPaddedColumns,
               groups = static_cast<size_t>(order.n_groups);
  Panels p;
  p.n = columns / kWidth;
  p.panel_bytes = static_cast<size_t>(order.depth) * static_cast<size_t>(2 * order.bits);
  p.codes = static_cast<const uint8_t*>(m.data);
  p.scale = reinterpret_cast<const float*>(p.codes + p.n * p.panel_bytes);
  p.zero = reinterpret_cast<const uint8_t*>(p.scale + columns * groups);
  return p;
}

// Neighbors in the packed order: whole runs, or a part of one.
struct Block {
  const Run* runs = nullptr;
  int n_runs = 0;
  int k = 0, n = 0;
  bool starts = true, ends = true;  // whether it has the beginnings of its runs, and their ends
};

// A tile: some rows by some panels by the k of a block.
struct TileArgs {
  const RoundedRows* x = nullptr;
  size_t x_stride = 0;
  size_t row = 0;  // the first
  // Where x->scale and x->sum have that row and the block's first run; rows are run_stride apart.
  size_t of_run = 0, run_stride = 0;
  Block block = {};
  const uint8_t* codes = nullptr;  // of the block's first k of the first panel
  size_t panel_bytes = 0;
  // The sums of a run start in its first block and are loaded in later ones. Its last block adds them to the totals,
  // the others store them.
  void* sums = nullptr;  // Form::Sum [rows][stride]
  size_t stride = 0;
  // Totals start at 0 with the matrix's first run.
  bool has_totals = false;
  float* totals = nullptr;  // [rows][totals_stride]
  size_t totals_stride = 0;
  const float* scale = nullptr;   // [n_groups][16] of the first panel; panels are scale_step apart
  const uint8_t* zero = nullptr;  // the same, or null
  size_t scale_step = 0;
  // From a scale to that of the panels behind, which is prefetched; 0 at the end of the matrix.
  size_t scale_ahead = 0;
  // Prefetched meanwhile: a piece for each panel, fetch_apart bytes from each other.
  const uint8_t* fetch = nullptr;
  size_t fetch_apart = 0, fetch_step = 0;
};

// What is prefetched during a block: for each of its panels a piece as long as the block. All pieces end within
// `bytes`. The beginnings of two neighbors are `apart` bytes from each other; 0 = the pieces follow without a gap.
struct Ahead {
  const uint8_t* begin = nullptr;
  size_t bytes = 0;
  size_t apart = 0;
};

// Calls step() for each line that the panels of a tile have of a run of its block, and prefetches kStreams lines from
// `fetch` for every kStreams lines read, and first the scales that the panels behind have for the same run.
template <typename Form, int kPanels, typename Step>
SPECD_INLINE void each_line(const TileArgs& a, int run, const uint8_t*& fetch, const Step& step) {
  constexpr int kRound = kStreams / kPanels;  // steps that read kStreams lines
  if (a.block.ends) {
    const float* const scale = a.scale + a.block.runs[run].group * kWidth + a.scale_ahead;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) prefetch_far(scale + p * a.scale_step);
  }
  const int n = a.block.n_runs == 1 ? a.block.n : a.block.runs[run].n, steps = n / Form::kStepK;
  int s = 0;
  for (; s + kRound <= steps; s += kRound) {
#pragma GCC unroll 4
    for (int i = 0; i < kStreams; ++i) {
      prefetch_far(fetch + i % kPanels * a.fetch_apart + i / kPanels * kLine);
    }
    fetch += a.fetch_step;
#pragma GCC unroll 4
    for (int i = 0; i < kRound; ++i) step();
  }
  for (; s < steps; ++s) step();
}

using TileFn = void (*)(const TileArgs&);

// The tile of `rows` rows by one panel or, if `wide`, by panels_of(rows).
template <typename Form>
static TileFn tile_of(int rows, bool wide) {
#define SPECD_TILE(n)                                                                       \
  case n:                                                                                   \
    if constexpr ((n) <= Form::kTileRows) {                                                 \
      return wide ? Form::template tile<n, Form::panels_of(n)> : Form::template tile<n, 1>; \
    }                                                                                       \
    break
  switch (rows) {
    SPECD_TILE(1);
    SPECD_TILE(2);
    SPECD_TILE(3);
    SPECD_TILE(4);
    SPECD_TILE(5);
    SPECD_TILE(6);
    SPECD_TILE(7);
    SPECD_TILE(8);
    default:
      break;
  }
#undef SPECD_TILE
  return nullptr;
}

// Bytes of n k in a panel.
template <typename Form>
SPECD_INLINE size_t bytes_of_k(int n) {
  return static_cast<size_t>(n / Form::kStepK * kLine);
}

// The block that begins at k, which is in `run`: as many whole runs as there is room for, or a part of one.
template <typename Form>
SPECD_INLINE Block block_at(const CodeOrder& order, const Run* run, int k, int lead) {
  const int left = order.depth - k;
  int room = Form::kCuts ? Form::kBlock - k % Form::kBlock : Form::kBlock;
  if (lead != 0) room = left > lead ? left - lead : left;
  const int of_first = run->begin + run->n - k;
  Block b{.runs = run, .n_runs = 1, .k = k};
  b.n = of_first < room ? of_first : room;
  b.starts = k == run->begin;
  b.ends = b.n == of_first;
  if (!b.starts || !b.ends) return b;
  for (const Run* const end = order.runs + order.n_runs; ++run < end && b.n + run->n <= room;) {
    b.n += run->n;
    ++b.n_runs;
  }
  return b;
}

// Rows [row, row + rows) by `panels` panels starting at `panel`. `after` is what this thread reads next. `lead` is not
// 0 only if one tile holds all rows: then the panels are those of a tile, read from end to end, with `lead` k
// prefetched ahead.
template <typename Form>
static void block_of_codes(const MatmulArgs& a, int64_t panel, int panels, int row, int rows,
                           int lead, const Ahead& after) {
  alignas(64) typename Form::Sum sums[kChunkRows * Form::kGroupPanels * kWidth];
  alignas(64) float own_totals[kChunkRows * Form::kGroupPanels * kWidth];
  const CodeOrder& order = *a.weights.order;
  const RoundedRows x(order, a.n_rows, a.scratch);
  const Panels m = panels_in(a.weights);
  const size_t n_runs = static_cast<size_t>(order.n_runs),
               groups = static_cast<size_t>(order.n_groups),
               stride = static_cast<size_t>(panels) * kWidth,
               column = static_cast<size_t>(panel) * kWidth,
               n_out = static_cast<size_t>(a.weights.n_out),
               columns = n_out - column < stride ? n_out - column : stride;
  float* const out = a.out + row * n_out + column;
  // Totals of a single run are written once, straight to `out`; not under TSan, which does not see a tile's writes.
  const bool in_place = !kIsUnderTsan && n_runs == 1 && columns == stride;
  float* const totals = in_place ? out : own_totals;
  const uint8_t* const codes = m.codes + panel * m.panel_bytes;
  const int n_tiles = (rows + Form::kTileRows - 1) / Form::kTileRows;
  const int widest = Form::panels_of(rows / n_tiles);
  TileArgs tile{.x = &x,
                .x_stride = RoundedRows::stride(order),
                .run_stride = n_runs,
                .panel_bytes = m.panel_bytes,
                .stride = stride,
                .totals_stride = in_place ? n_out : stride,
                .scale_step = groups * kWidth};
  const Run* run = order.runs;
  for (int k = 0; k < order.depth; k += tile.block.n) {
    const Block block = block_at<Form>(order, run, k, lead);
    const size_t first_run = static_cast<size_t>(run - order.runs);
    run += block.ends ? block.n_runs : 0;
    tile.block = block;
    tile.has_totals = first_run > 0;
    const int n = block.n;
    const Ahead ahead = k + n < order.depth
                            ? Ahead{codes + bytes_of_k<Form>(k + (lead == 0 ? n : lead)),
                                    panels * m.panel_bytes, m.panel_bytes}
                            : after;
    const size_t apart = ahead.apart == 0 ? bytes_of_k<Form>(n) : ahead.apart;
    for (int p = 0; p < panels;) {
      const bool wide = panels - p >= widest;
      const int across = wide ? widest : 1;
      int first = 0;
      for (int t = 0; t < n_tiles; ++t) {
        const int last = rows * (t + 1) / n_tiles, tile_rows = last - first;
        tile.row = static_cast<size_t>(row + first);
        tile.of_run = tile.row * n_runs + first_run;
        for (int q = p; q < p + across;) {
          // Other tiles of these rows may be narrower.
          const bool fits = p + across - q >= Form::panels_of(tile_rows);
          const int width = fits ? Form::panels_of(tile_rows) : 1;
          tile.fetch = codes;  // nothing to fetch: the same lines again
          tile.fetch_apart = tile.fetch_step = 0;
          if ((q + width) * apart <= ahead.bytes) {
            tile.fetch = ahead.begin + q * apart + bytes_of_k<Form>(n) * first / rows;
            tile.fetch_apart = apart;
            tile.fetch_step = static_cast<size_t>(kStreams / width * kLine * tile_rows / rows);
          }
          const size_t at = static_cast<size_t>(panel + q), of_panel = at * tile.scale_step;
          tile.codes = codes + q * m.panel_bytes + bytes_of_k<Form>(k);
          tile.sums = sums + first * stride + q * kWidth;
          tile.totals = totals + first * tile.totals_stride + q * kWidth;
          tile.scale = m.scale + of_panel;
          tile.zero = order.has_zeros ? m.zero + of_panel : nullptr;
          tile.scale_ahead =
              at + 2 * static_cast<size_t>(width) <= m.n ? width * tile.scale_step : 0;
          tile_of<Form>(tile_rows, fits)(tile);
          q += width;
        }
        first = last;
      }
      p += across;
    }
  }
  if (in_place) return;
  for (int r = 0; r < rows; ++r) {
    __builtin_memcpy(out + r * n_out, own_totals + r * stride, sizeof(float) * columns);
  }
}

// Panels of a part of a matrix.
SPECD_INLINE Share panels_of_part(const PackedMatrix& m, int part, int parts) {
  return share_of((static_cast<int64_t>(m.n_out) + kWidth - 1) / kWidth, part, parts);
}

// Panels of the next group where `left` of a part are left. Groups of about the same size: the last one is long
// enough to fetch the beginning of the next matrix.
template <typename Form>
SPECD_INLINE int64_t panels_of_group(int64_t left) {
  static_assert(Form::kGroupPanels % kStreams == 0);
  const int64_t groups = (left + Form::kGroupPanels - 1) / Form::kGroupPanels,
                even = (left + groups - 1) / groups,
                whole = (even + kStreams - 1) / kStreams * kStreams;
  return left < whole ? left : whole;
}

// The codes that a part of the next matmul reads first, if they are of the same kind.
template <typename Form>
static Ahead beginning_of(const MatmulArgs& a, int part, int parts) {
  if (a.next == nullptr || a.next->order == nullptr) return {};
  const CodeOrder &now = *a.weights.order, &order = *a.next->order;
  const Share share = panels_of_part(*a.next, part, parts);
  const int64_t n = share.end - share.begin;
  if (order.bits != now.bits || order.x_bits != now.x_bits || n == 0) return {};
  const Panels m = panels_in(*a.next);
  const uint8_t* const codes = m.codes + share.begin * m.panel_bytes;
  // The first block has whole panels, which lie one behind the other, or the beginnings of some.
  if (order.depth <= Form::kBlock) return {codes, n * m.panel_bytes, 0};
  return {codes, panels_of_group<Form>(n) * m.panel_bytes, m.panel_bytes};
}

template <typename Form>
static void matmul_of_codes(const MatmulArgs& a, int part, int parts) {
  const Panels m = panels_in(a.weights);
  const Share share = panels_of_part(a.weights, part, parts);
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  static_assert(Form::kLead == 0 || Form::kLead == Form::kBlock, "as beginning_of() has it");
  static_assert(Form::kCuts || kRun16Max <= Form::kBlock);
  const int lead = a.n_rows <= Form::kTileRows ? Form::kLead : 0;
  for (int64_t panel = share.begin, panels; panel < share.end; panel += panels) {
    const int64_t left = share.end - panel;
    if (lead == 0) {
      panels = panels_of_group<Form>(left);
    } else {
      const int64_t of_tile = Form::panels_of(a.n_rows), over = left % of_tile;
      panels = over == 0 ? of_tile : over;  // a narrow group comes first
    }
    const uint8_t* const codes = m.codes + panel * m.panel_bytes;
    const size_t bytes = panels * m.panel_bytes;
    const Ahead again{codes, bytes, m.panel_bytes};
    const Ahead next = panels < left
                           ? Ahead{codes + bytes, (left - panels) * m.panel_bytes, m.panel_bytes}
                           : beginning_of<Form>(a, part, parts);
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int first = static_cast<int>(int64_t{a.n_rows} * chunk / n_chunks);
      const int last = static_cast<int>(int64_t{a.n_rows} * (chunk + 1) / n_chunks);
      block_of_codes<Form>(a, panel, static_cast<int>(panels), first, last - first, lead,
                           chunk + 1 < n_chunks ? again : next);
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
