// A matmul of codes apart from its arithmetic: the packed matrix, and the walk over it in tiles.
//
// The arithmetic is a Form, a struct in integers.cc or float8.cc:
//   Sum                      of a run so far: int32_t or float
//   kStepK                   k of a line
//   kCuts                    whether runs are cut, at multiples of kBlock; otherwise none is longer than kBlock
//   kTileRows                the most rows of a tile
//   panels_of(rows)          panels of a tile of so many rows: 1, 2 or 4
//   tiles<rows, panels>(TileArgs)
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
};

// Tiles that lie one below the other: each has some rows by some panels by the k of a block.
struct TileArgs {
  int tiles = 0;
  const RoundedRows* x = nullptr;
  size_t x_stride = 0;
  size_t row = 0;  // the first
  // Where x->scale and x->start have that row and the block's first run; rows are run_stride apart.
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
  // Prefetched meanwhile: for each panel a piece as long as the block, by fetch_every tiles together. The pieces of two
  // panels are fetch_apart bytes from each other.
  const uint8_t* fetch = nullptr;
  size_t fetch_apart = 0, fetch_step = 0;
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
  fetch.at += a.fetch_step;
}

// Prefetches the scales that the panels behind have for a run.
template <int kPanels>
SPECD_INLINE void fetch_scales(const TileArgs& a, const Run& run) {
  const float* const scale = a.scale + run.group * kWidth + a.scale_ahead;
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) prefetch_near(scale + p * a.scale_step);
}

// Calls step() for each line that the panels of a tile have of a run of its block. A round reads kStreams lines.
template <typename Form, int kPanels, typename Step>
SPECD_INLINE void each_line(const TileArgs& a, int run, Fetch& fetch, const Step& step) {
  constexpr int kRound = kStreams / kPanels;
  const int n = a.block.n_runs == 1 ? a.block.n : a.block.runs[run].n, steps = n / Form::kStepK;
  int s = 0;
  for (; s + kRound <= steps; s += kRound) {
    fetch_in_round<kPanels>(a, fetch);
#pragma GCC unroll 4
    for (int i = 0; i < kRound; ++i) step();
  }
  for (; s < steps; ++s) step();
}

using TileFn = void (*)(const TileArgs&);

// Tiles of `rows` rows by one panel or, if `wide`, by panels_of(rows).
template <typename Form>
static TileFn tiles_of(int rows, bool wide) {
#define SPECD_TILE(n)                                                                         \
  case n:                                                                                     \
    if constexpr ((n) <= Form::kTileRows) {                                                   \
      return wide ? Form::template tiles<n, Form::panels_of(n)> : Form::template tiles<n, 1>; \
    }                                                                                         \
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
  TileFn wide, narrow;  // of `width` panels and of one
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
  alignas(64) typename Form::Sum sums[kChunkRows * kStreams * kWidth];
  alignas(64) float own_totals[kChunkRows * kStreams * kWidth];
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
                .stride = stride,
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
    for (const RowsOfTiles& t : of_tiles) {
      if (t.tiles == 0) continue;
      tile.tiles = t.tiles;
      tile.row = static_cast<size_t>(row + t.first_row);
      tile.of_run = tile.row * n_runs + first_run;
      for (int q = 0, width; q < panels; q += width) {
        const bool is_wide = panels - q >= t.width;
        width = is_wide ? t.width : 1;
        tile.fetch = codes;  // nothing to fetch: the same lines again
        tile.fetch_apart = tile.fetch_step = 0;
        if (static_cast<size_t>(q + width) <= ahead.now.panels) {
          tile.fetch = ahead.now.codes + ahead.at + q * ahead.now.panel_bytes;
          if (t.first_tile != 0) tile.fetch += bytes / kLine * t.first_tile / n_tiles * kLine;
          tile.fetch_apart = ahead.now.panel_bytes;
          tile.fetch_step = static_cast<size_t>(kStreams / width * kLine);
        }
        const size_t at = static_cast<size_t>(panel + q), of_panel = at * tile.scale_step;
        tile.codes = codes + q * m.panel_bytes + done;
        tile.sums = sums + t.first_row * stride + q * kWidth;
        tile.totals = totals + t.first_row * tile.totals_stride + q * kWidth;
        tile.scale = m.scale + of_panel;
        tile.zero = order.has_zeros ? m.zero + of_panel : nullptr;
        tile.scale_ahead = at + 2 * static_cast<size_t>(width) <= m.n ? width * tile.scale_step : 0;
        (is_wide ? t.wide : t.narrow)(tile);
      }
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
