// A matmul of codes apart from its arithmetic: the packed matrix, and the walk over it in tiles.
//
// The arithmetic is a Form, a struct in integers.cc or float8.cc:
//   Sum, Sums                of a run so far: int32_t or float, and a register of them, of one row by a panel
//   kStepK                   k of a line
//   kCuts                    whether runs are cut, at multiples of kBlock; otherwise none is longer than kBlock
//   kTileRows                the most rows of a tile
//   panels_of(rows)          panels of a tile of so many rows: 1, 2 or 4
//   x_at(a), x_stride(a)     x of a tile's first row from its block on, and the distance of rows
//   kXOfLine                 from x of a line to that of the next
//   add_line<rows, panels>(x, x_stride, codes, panel_bytes, sum)
//   first_sum(a, of_run, run, r, p)
//                            the sums of row r by panel p before the first line of a run
//   total(a, of_run, r, sum, scale, before)
//                            their totals behind the last line; scale is that of the run's group
//   load_sums(p), store_sums(p, sums)
//
// All panels of codes are followed by the scales, [panel][n_groups][16], and the zeros of the same shape.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "specd/kernels/matmul.h"

namespace specd::kernels::SPECD_ISA {

constexpr int kWidth = 16;   // columns of a panel
constexpr int kLine = 64;    // bytes that 16 columns have in one step
constexpr int kStreams = 4;  // panels that all rows pass over before the next; no tile has more
constexpr int kBlock = 128;  // the most k that all rows pass over before the next
static_assert(kRun16Max <= kBlock && RoundedRows::kFloatBlock % kBlock == 0);
// Bytes of a panel that are prefetched ahead, at least those of a block, which is read meanwhile.
constexpr size_t kLead = 2048;
static_assert(kBlock * kWidth <= kLead);
constexpr int kChunkRows = 48;  // rows whose sums stay in the cache
constexpr int kSumsOfRow = kStreams * kWidth;
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

// Word i of each 8 words of x is from this place of the packed order. A line has 4 bytes of a column, multiplied as two
// words of 16 bits; so two neighbors of x go with the codes that are at the same bits of both words.
constexpr int place_of_word(int bits, int i) {
  return bits == 8 ? i / 4 * 4 + i % 2 * 2 + i % 4 / 2 : i % 2 * 2 + i / 2 % 2 * 4 + i / 4;
}

// Neighbors in the packed order: whole runs, or a part of one.
struct Block {
  const Run* runs = nullptr;
  int n_runs = 0;
  int k = 0, n = 0;
  bool starts = true, ends = true;  // whether it has the beginnings of its runs, and their ends
  bool is_part() const { return !starts || !ends; }
};

// Tiles that lie one below the other: each has some rows by some panels by the k of a block.
struct TileArgs {
  int tiles = 0;
  const RoundedRows* x = nullptr;
  size_t x_stride = 0;  // of integers
  size_t row = 0;       // the first
  // Where x->scale and x->start have that row and the block's first run; rows are run_stride apart.
  size_t of_run = 0, run_stride = 0;
  Block block = {};
  const uint8_t* codes = nullptr;  // of the block's first k of the first panel
  size_t panel_bytes = 0;
  void* sums = nullptr;  // Form::Sum [rows][kSumsOfRow], of a run that is longer than the block
  // Totals start at 0 with the matrix's first run.
  bool has_totals = false;
  float* totals = nullptr;  // [rows][totals_stride]
  size_t totals_stride = 0;
  const float* scale = nullptr;   // [n_groups][16] of the first panel; panels are scale_step apart
  const uint8_t* zero = nullptr;  // the same, or null
  size_t scale_step = 0;
  // From a scale to that of the panels behind, which is prefetched; 0 at the end of the matrix.
  size_t scale_ahead = 0;
  // Prefetched meanwhile: for each panel a piece as long as the block, by fetch_every tiles together. The pieces of two
  // panels are fetch_apart bytes from each other.
  const uint8_t* fetch = nullptr;
  size_t fetch_apart = 0;
  int fetch_every = 1;
};

// Panels that lie one behind the other and are read in groups of kStreams.
struct Stretch {
  const uint8_t* codes = nullptr;
  size_t panels = 0, panel_bytes = 0;
};

// A place in two stretches that are read one after the other: `at` bytes into each panel of a group.
struct Place {
  Stretch now, then;  // what is left of them, from that group on
  size_t at;
};
SPECD_INLINE void advance(Place& p, size_t bytes) {
  p.at += bytes;
  while (p.at >= p.now.panel_bytes && p.now.panels != 0) {
    p.at -= p.now.panel_bytes;
    if (p.now.panels > kStreams) {
      p.now.codes += kStreams * p.now.panel_bytes;
      p.now.panels -= kStreams;
    } else {
      p.now = p.then;
      p.then = {};
    }
  }
}

// use(r, p) for the rows and panels of a tile, unrolled.
template <int kRows, int kPanels, typename Use>
SPECD_INLINE void each_output(const Use& use) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) use(r, p);
  }
}

// Where tiles are with what they prefetch.
struct Fetch {
  const uint8_t* at;
  int rounds_left;  // until the next lines
};

// Prefetches kStreams lines in every fetch_every-th round, so that all tiles have a share.
template <int kPanels>
SPECD_INLINE void fetch_in_round(const TileArgs& a, Fetch& fetch) {
  if (--fetch.rounds_left > 0) return;
  fetch.rounds_left = a.fetch_every;
#pragma GCC unroll 4
  for (int i = 0; i < kStreams; ++i) {
    prefetch_near(fetch.at + i % kPanels * a.fetch_apart + i / kPanels * kLine);
  }
  fetch.at += kStreams / kPanels * kLine;
}

SPECD_INLINE F32x16 scale_of(const TileArgs& a, const Run& run, int panel) {
  return load(a.scale + run.group * kWidth + panel * a.scale_step);
}
// Prefetches the scales that the panels behind have for a run.
SPECD_INLINE void fetch_scales(const TileArgs& a, const Run& run, int panels) {
  const float* const scale = a.scale + run.group * kWidth + a.scale_ahead;
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) prefetch_near(scale + p * a.scale_step);
}

// Adds n k to the sums of a tile, from x and w on. A round reads kStreams lines.
template <typename Form, int kRows, int kPanels>
SPECD_INLINE void add_lines(const TileArgs& a, int n, const typename Form::Factor*& x,
                            size_t x_stride, const uint8_t*& w, Fetch& fetch,
                            typename Form::Sums (&sum)[kRows][kPanels]) {
  constexpr int kRound = kStreams / kPanels;
  const int lines = n / Form::kStepK;
  const auto step = [&]() __attribute__((always_inline)) {
    Form::template add_line<kRows, kPanels>(x, x_stride, w, a.panel_bytes, sum);
    x += Form::kXOfLine;
    w += kLine;
  };
  int i = 0;
  for (; i + kRound <= lines; i += kRound) {
    fetch_in_round<kPanels>(a, fetch);
#pragma GCC unroll 4
    for (int j = 0; j < kRound; ++j) step();
  }
  for (; i < lines; ++i) step();
}

// Tiles over a block of whole runs, whose sums stay in registers. TSan does not instrument tiles, as in matmul.cc.
template <typename Form, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) static void tiles_of_runs(const TileArgs& args) {
  const TileArgs a = args;  // no store can change a copy, so what it has stays in registers
  const size_t x_stride = Form::x_stride(a);
  const typename Form::Factor* of_tile = Form::x_at(a);
  float* totals = a.totals;
  size_t of_run = a.of_run;
  Fetch fetch{a.fetch, 1};
  for (int t = 0; t < a.tiles; ++t) {
    const typename Form::Factor* x = of_tile;
    const uint8_t* w = a.codes;
    for (int i = 0; i < a.block.n_runs; ++i) {
      const Run& run = a.block.runs[i];
      typename Form::Sums sum[kRows][kPanels];
      each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
        sum[r][p] = Form::first_sum(a, of_run + i, run, r, p);
      });
      add_lines<Form, kRows, kPanels>(a, run.n, x, x_stride, w, fetch, sum);
      if (t == 0) fetch_scales(a, run, kPanels);
      F32x16 scale[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) scale[p] = scale_of(a, run, p);
      const bool is_first = !a.has_totals && i == 0;
      each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
        float* const total = totals + r * a.totals_stride + kWidth * p;
        store(total, Form::total(a, of_run + i, r, sum[r][p], scale[p],
                                 is_first ? set1(0.0f) : load(total)));
      });
    }
    of_tile += kRows * x_stride;
    totals += kRows * a.totals_stride;
    of_run += kRows * a.run_stride;
  }
}

// Tiles over a part of a run. A function that can do no more than this has fewer instructions from tile to tile.
template <typename Form, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) static void tiles_of_part(const TileArgs& args) {
  const TileArgs a = args;
  const size_t x_stride = Form::x_stride(a);
  const typename Form::Factor* of_tile = Form::x_at(a);
  typename Form::Sum* sums = static_cast<typename Form::Sum*>(a.sums);
  Fetch fetch{a.fetch, 1};
  for (int t = 0; t < a.tiles; ++t) {
    const typename Form::Factor* x = of_tile;
    const uint8_t* w = a.codes;
    typename Form::Sums sum[kRows][kPanels];
    each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
      sum[r][p] = Form::load_sums(sums + r * kSumsOfRow + p * kWidth);
    });
    add_lines<Form, kRows, kPanels>(a, a.block.n, x, x_stride, w, fetch, sum);
    each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
      Form::store_sums(sums + r * kSumsOfRow + p * kWidth, sum[r][p]);
    });
    of_tile += kRows * x_stride;
    sums += kRows * kSumsOfRow;
  }
}

// Before the first part of a run, and behind the last: the sums and totals of some rows by some panels.
template <typename Form>
static void start_run(const TileArgs& a, int rows, int panels) {
  for (int p = 0; p < panels; ++p) {
    typename Form::Sum* const sums = static_cast<typename Form::Sum*>(a.sums) + p * kWidth;
    for (int r = 0; r < rows; ++r) {
      Form::store_sums(sums + r * kSumsOfRow, Form::first_sum(a, a.of_run, *a.block.runs, r, p));
    }
  }
}
template <typename Form>
static void end_run(const TileArgs& a, int rows, int panels) {
  fetch_scales(a, *a.block.runs, panels);
  for (int p = 0; p < panels; ++p) {
    const typename Form::Sum* const sums =
        static_cast<const typename Form::Sum*>(a.sums) + p * kWidth;
    const F32x16 scale = scale_of(a, *a.block.runs, p);
    for (int r = 0; r < rows; ++r) {
      float* const total = a.totals + r * a.totals_stride + p * kWidth;
      store(total, Form::total(a, a.of_run, r, Form::load_sums(sums + r * kSumsOfRow), scale,
                               a.has_totals ? load(total) : set1(0.0f)));
    }
  }
}

using TileFn = void (*)(const TileArgs&);
struct TileFns {
  TileFn of_runs, of_part;
};
template <typename Form, int kRows, int kPanels>
static TileFns tile_fns() {
  if constexpr (Form::kCuts) {
    return {tiles_of_runs<Form, kRows, kPanels>, tiles_of_part<Form, kRows, kPanels>};
  } else {
    return {tiles_of_runs<Form, kRows, kPanels>, nullptr};
  }
}

// Tiles of `rows` rows by one panel or, if `wide`, by panels_of(rows).
template <typename Form>
static TileFns tiles_of(int rows, bool wide) {
#define SPECD_TILE(n)                                                                  \
  case n:                                                                              \
    if constexpr ((n) <= Form::kTileRows) {                                            \
      return wide ? tile_fns<Form, n, Form::panels_of(n)>() : tile_fns<Form, n, 1>();  \
    }                                                                                  \
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
  __builtin_unreachable();  // no tile has more than kTileRows
}

// Some tiles of a chunk, which have equally many rows.
struct RowsOfTiles {
  TileFns wide, narrow;  // of `width` panels and of one
  int width, tiles;
  int first_row, first_tile;
};
template <typename Form>
SPECD_INLINE RowsOfTiles rows_of_tiles(int rows, int tiles, int first_row, int first_tile) {
  return {.wide = tiles_of<Form>(rows, true),
          .narrow = tiles_of<Form>(rows, false),
          .width = Form::panels_of(rows),
          .tiles = tiles,
          .first_row = first_row,
          .first_tile = first_tile};
}

// Bytes of n k in a panel.
template <typename Form>
SPECD_INLINE size_t bytes_of_k(int n) {
  return static_cast<size_t>(n / Form::kStepK * kLine);
}

// The block that begins at k, which is in `run`: as many whole runs as there is room for, or a part of one.
template <typename Form>
SPECD_INLINE Block block_at(const Run* end, const Run* run, int k) {
  const int room = Form::kCuts ? kBlock - k % kBlock : kBlock;
  const int of_first = run->begin + run->n - k;
  Block b{.runs = run, .n_runs = 1, .k = k};
  b.n = of_first < room ? of_first : room;
  b.starts = k == run->begin;
  b.ends = b.n == of_first;
  if (!b.starts || !b.ends) return b;
  while (++run < end && b.n + run->n <= room) {
    b.n += run->n;
    ++b.n_runs;
  }
  return b;
}

// Rows [row, row + rows) by the first panels of `here`, at most kStreams, which are those from `panel` on. This thread reads
// the other panels of `here` next, then `after`.
template <typename Form>
static void block_of_codes(const MatmulArgs& a, int64_t panel, int row, int rows,
                           const Stretch& here, const Stretch& after) {
  const int panels = here.panels < kStreams ? static_cast<int>(here.panels) : kStreams;
  alignas(64) typename Form::Sum sums[kChunkRows * kSumsOfRow];
  alignas(64) float own_totals[kChunkRows * kSumsOfRow];
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
  const uint8_t* const codes = here.codes;
  const int n_tiles = (rows + Form::kTileRows - 1) / Form::kTileRows, tile_rows = rows / n_tiles,
            more = rows % n_tiles;
  const RowsOfTiles of_tiles[] = {
      rows_of_tiles<Form>(more == 0 ? tile_rows : tile_rows + 1, more, 0, 0),
      rows_of_tiles<Form>(tile_rows, n_tiles - more, more * (tile_rows + 1), more)};
  TileArgs tile{.x = &x,
                .x_stride = RoundedRows::stride(order),
                .run_stride = n_runs,
                .panel_bytes = m.panel_bytes,
                .totals_stride = in_place ? n_out : stride,
                .scale_step = groups * kWidth,
                .fetch_every = n_tiles};
  Place ahead{here, after, 0};
  advance(ahead, kLead);
  const Run* run = order.runs;
  for (int k = 0; k < order.depth; k += tile.block.n) {
    tile.block = block_at<Form>(order.runs + order.n_runs, run, k);
    const size_t first_run = static_cast<size_t>(run - order.runs),
                 bytes = bytes_of_k<Form>(tile.block.n), done = bytes_of_k<Form>(k);
    run += tile.block.ends ? tile.block.n_runs : 0;
    tile.has_totals = first_run > 0;
    const bool is_part = Form::kCuts && tile.block.is_part();
    const auto place = [&](int first_row, int q, int width) {
      const size_t at = static_cast<size_t>(panel + q), of_panel = at * tile.scale_step;
      tile.row = static_cast<size_t>(row + first_row);
      tile.of_run = tile.row * n_runs + first_run;
      tile.codes = codes + q * m.panel_bytes + done;
      tile.sums = sums + first_row * kSumsOfRow + q * kWidth;
      tile.totals = totals + first_row * tile.totals_stride + q * kWidth;
      tile.scale = m.scale + of_panel;
      tile.zero = order.has_zeros ? m.zero + of_panel : nullptr;
      tile.scale_ahead = at + 2 * static_cast<size_t>(width) <= m.n ? width * tile.scale_step : 0;
    };
    if (is_part && tile.block.starts) {
      place(0, 0, panels);
      start_run<Form>(tile, rows, panels);
    }
    for (const RowsOfTiles& t : of_tiles) {
      if (t.tiles == 0) continue;
      tile.tiles = t.tiles;
      for (int q = 0, width; q < panels; q += width) {
        const bool is_wide = panels - q >= t.width;
        width = is_wide ? t.width : 1;
        place(t.first_row, q, width);
        tile.fetch = tile.codes;  // nothing to fetch: its own lines again
        tile.fetch_apart = m.panel_bytes;
        if (static_cast<size_t>(q + width) <= ahead.now.panels) {
          tile.fetch = ahead.now.codes + ahead.at + q * ahead.now.panel_bytes;
          if (t.first_tile != 0) tile.fetch += bytes / kLine * t.first_tile / n_tiles * kLine;
          tile.fetch_apart = ahead.now.panel_bytes;
        }
        const TileFns& fns = is_wide ? t.wide : t.narrow;
        (is_part ? fns.of_part : fns.of_runs)(tile);
      }
    }
    if (is_part && tile.block.ends) {
      place(0, 0, panels);
      end_run<Form>(tile, rows, panels);
    }
    // What was prefetched behind the end of a panel is not the beginning of the next group.
    const size_t left = ahead.now.panel_bytes - ahead.at;
    advance(ahead, bytes < left ? bytes : left);
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

// The codes of a part of a matrix.
SPECD_INLINE Stretch stretch_of(const PackedMatrix& m, const Share& share) {
  const Panels p = panels_in(m);
  return {p.codes + share.begin * p.panel_bytes, static_cast<size_t>(share.end - share.begin),
          p.panel_bytes};
}

template <typename Form>
static void matmul_of_codes(const MatmulArgs& a, int part, int parts) {
  const Share share = panels_of_part(a.weights, part, parts);
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  Stretch next = {};
  if (a.next != nullptr && a.next->order != nullptr) {
    next = stretch_of(*a.next, panels_of_part(*a.next, part, parts));
  }
  Stretch rest = stretch_of(a.weights, share);
  for (int64_t panel = share.begin; panel < share.end; panel += kStreams) {
    const Stretch group = {rest.codes, rest.panels < kStreams ? rest.panels : kStreams,
                           rest.panel_bytes};
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int first = static_cast<int>(int64_t{a.n_rows} * chunk / n_chunks);
      const int last = static_cast<int>(int64_t{a.n_rows} * (chunk + 1) / n_chunks);
      const bool again = chunk + 1 < n_chunks;
      block_of_codes<Form>(a, panel, first, last - first, again ? group : rest,
                           again ? group : next);
    }
    rest.codes += group.panels * rest.panel_bytes;
    rest.panels -= group.panels;
  }
}

}  // namespace specd::kernels::SPECD_ISA
