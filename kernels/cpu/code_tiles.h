// A matmul of codes apart from its arithmetic: the packed matrix, and the walk over it in tiles.
//
// The arithmetic is a Form, a struct in integers.cc or float8.cc:
//   Sum, Sums                of a run so far: int32_t or float, and the 16 of one row by a panel
//   Factor                   of x: int8_t or float
//   kStepK, kXOfLine         k of a line, and Factors of x for it
//   kCuts                    whether runs are cut, at multiples of kBlock; otherwise none is longer than kBlock
//   kTileRows                the most rows of a tile
//   panels_of(rows)          panels of a tile of so many rows: 1, 2 or 4
//   x_at(group, block), x_stride(group)
//                            x of the first row from the block on, and the distance of rows
//   add_line<rows, panels>(x, x_stride, codes, panel_bytes, sum)
//   load_sums(from), store_sums(to, sums)
//   first_sum(group, of_run, run, r, p)
//                            the sums of row r by panel p before the first line of a run; of_run is where x->scale and
//                            x->start have the first row and the run
//   scale_of_row(group, of_run, r)
//                            of x of row r; 1 where x is not rounded
//   total(sum, scale_of_row, scale, before)
//                            `before`, and the sums of a row behind the last line, scaled
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
static constexpr int panels_within(int fit) { return fit >= 4 ? 4 : fit >= 2 ? 2 : 1; }

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
static constexpr int place_of_word(int bits, int i) {
  return bits == 8 ? i / 4 * 4 + i % 2 * 2 + i % 4 / 2 : i % 2 * 2 + i / 2 % 2 * 4 + i / 4;
}

// Neighbors in the packed order: whole runs, or a part of one.
struct Block {
  const Run* runs = nullptr;
  int n_runs = 0;
  int k = 0, n = 0;
  bool starts = true, ends = true;  // whether it has the beginnings of its runs, and their ends
  size_t first_run = 0;             // of the matrix
  size_t at = 0;                    // bytes into each panel
  // Read next, so prefetched meanwhile: a piece as long as the block of each of so many panels, `ahead_apart` bytes
  // from each other.
  const uint8_t* ahead = nullptr;
  size_t ahead_panels = 0, ahead_apart = 0;
};

// Some rows by at most kStreams panels.
struct Group {
  const RoundedRows* x;
  size_t x_stride;       // of integers: bytes
  size_t row;            // the first
  size_t n_runs;         // of the matrix: a row of x->scale and x->start
  const uint8_t* codes;  // of the first panel
  size_t panel_bytes;
  // The first panel's place among kStreams, and how many there are from it to the end of the matrix.
  size_t panel, panels_left;
  void* sums;     // Form::Sum [rows][kSumsOfRow], of a run that goes on in the next block
  float* totals;  // [rows][totals_stride]; they start at 0 with the matrix's first run
  size_t totals_stride;
  const float* scale;   // [n_groups][16] of the first panel; panels are scale_step apart
  const uint8_t* zero;  // the same, or null
  size_t scale_step;
};

// Tiles of a group that lie one below the other: each has some rows by some panels.
struct Tiles;
using TileFn = void (*)(const Group&, const Tiles&, const Block&);
struct Tiles {
  TileFn of_runs, in_run;
  int n;
  size_t first_row, first_panel;  // in the group
  // What a block has ahead is prefetched by `sharing` tiles for each panel, of which `before` are above these.
  int before, sharing;
};
// All tiles of a group of so many rows and panels.
struct Plan {
  int rows, panels, n;
  Tiles tiles[2 * kStreams];
};

// The group from the first row and panel of tiles on.
template <typename Form>
SPECD_INLINE Group group_from(Group g, const Tiles& t) {
  g.row += t.first_row;
  g.codes += t.first_panel * g.panel_bytes;
  g.panel += t.first_panel;
  g.panels_left -= t.first_panel;
  g.sums =
      static_cast<typename Form::Sum*>(g.sums) + t.first_row * kSumsOfRow + t.first_panel * kWidth;
  g.totals += t.first_row * g.totals_stride + t.first_panel * kWidth;
  g.scale += t.first_panel * g.scale_step;
  if (g.zero != nullptr) g.zero += t.first_panel * g.scale_step;
  return g;
}

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
  size_t apart;            // from panel to panel
  int every, rounds_left;  // rounds from fetch to fetch, and until the next
};
template <typename Form, int kPanels>
SPECD_INLINE Fetch fetch_of(const Group& g, const Tiles& t, const Block& b) {
  // Nothing to fetch: lines of this block, which are cached anyway.
  if (g.panel + kPanels > b.ahead_panels) return {g.codes + b.at, g.panel_bytes, t.sharing, 1};
  const int lines = t.before == 0 ? 0 : b.n / Form::kStepK * t.before / t.sharing;
  return {b.ahead + g.panel * b.ahead_apart + static_cast<size_t>(lines * kLine), b.ahead_apart,
          t.sharing, 1};
}

// Prefetches kStreams lines in every round of `every`, so that all tiles have a share.
template <int kPanels>
SPECD_INLINE void fetch_in_round(Fetch& fetch) {
  if (--fetch.rounds_left > 0) return;
  fetch.rounds_left = fetch.every;
#pragma GCC unroll 4
  for (int i = 0; i < kStreams; ++i) {
    prefetch_near(fetch.at + i % kPanels * fetch.apart + i / kPanels * kLine);
  }
  fetch.at += kStreams / kPanels * kLine;
}

SPECD_INLINE const float* scale_at(const Group& g, const Run& run) {
  return g.scale + run.group * kWidth;
}
// Prefetches the scales that the panels behind those of a tile have for a run.
template <int kPanels>
SPECD_INLINE void fetch_scales(const Group& g, const Run& run) {
  const float* const scale =
      scale_at(g, run) + (g.panels_left < 2 * kPanels ? 0 : kPanels * g.scale_step);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) prefetch_near(scale + p * g.scale_step);
}

// The sums of a tile are stored while other tiles use the registers.
template <typename Form, int kRows, int kPanels>
SPECD_INLINE void load_tile(const typename Form::Sum* from,
                            typename Form::Sums (&sum)[kRows][kPanels]) {
  each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
    sum[r][p] = Form::load_sums(from + r * kSumsOfRow + p * kWidth);
  });
}
template <typename Form, int kRows, int kPanels>
SPECD_INLINE void store_tile(typename Form::Sum* to,
                             const typename Form::Sums (&sum)[kRows][kPanels]) {
  each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
    Form::store_sums(to + r * kSumsOfRow + p * kWidth, sum[r][p]);
  });
}

// Adds n k to the sums of a tile, from x and w on. A round reads kStreams lines.
template <typename Form, int kRows, int kPanels>
SPECD_INLINE void add_lines(size_t panel_bytes, int n, const typename Form::Factor*& x,
                            size_t x_stride, const uint8_t*& w, Fetch& fetch,
                            typename Form::Sums (&sum)[kRows][kPanels]) {
  constexpr int kRound = kStreams / kPanels;
  const int lines = n / Form::kStepK;
  const auto step = [&]() __attribute__((always_inline)) {
    Form::template add_line<kRows, kPanels>(x, x_stride, w, panel_bytes, sum);
    x += Form::kXOfLine;
    w += kLine;
  };
  int i = 0;
  for (; i + kRound <= lines; i += kRound) {
    fetch_in_round<kPanels>(fetch);
#pragma GCC unroll 4
    for (int j = 0; j < kRound; ++j) step();
  }
  for (; i < lines; ++i) step();
}

template <typename Form, int kRows, int kPanels>
SPECD_INLINE void add_runs(const Group& g, const Tiles& tiles, const Block& b) {
  const size_t x_stride = Form::x_stride(g);
  const typename Form::Factor* of_tile = Form::x_at(g, b);
  typename Form::Sum* sums = static_cast<typename Form::Sum*>(g.sums);
  float* totals = g.totals;
  size_t of_run = g.row * g.n_runs + b.first_run;
  Fetch fetch = fetch_of<Form, kPanels>(g, tiles, b);
  for (int t = 0, n = tiles.n; t < n; ++t) {
    const typename Form::Factor* x = of_tile;
    const uint8_t* w = g.codes + b.at;
    for (int i = 0; i < b.n_runs; ++i) {
      const Run& run = b.runs[i];
      typename Form::Sums sum[kRows][kPanels];
      if (!Form::kCuts || b.starts) {
        each_output<kRows, kPanels>([&](int r, int p) __attribute__((always_inline)) {
          sum[r][p] = Form::first_sum(g, of_run + i, run, r, p);
        });
      } else {
        load_tile<Form>(sums, sum);
      }
      add_lines<Form>(g.panel_bytes, b.n_runs == 1 ? b.n : run.n, x, x_stride, w, fetch, sum);
      if (Form::kCuts && !b.ends) {
        store_tile<Form>(sums, sum);
        continue;
      }
      if (t == 0) fetch_scales<kPanels>(g, run);
      F32x16 scale[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) scale[p] = load(scale_at(g, run) + p * g.scale_step);
      const bool is_first = b.first_run == 0 && i == 0;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        // Not in the loop over panels: GCC would load it again behind each store.
        const F32x16 scale_of_row = Form::scale_of_row(g, of_run + i, r);
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
          float* const total = totals + r * g.totals_stride + kWidth * p;
          store(total, Form::total(sum[r][p], scale_of_row, scale[p],
                                   is_first ? set1(0.0f) : load(total)));
        }
      }
    }
    of_tile += kRows * x_stride;
    sums += kRows * kSumsOfRow;
    totals += kRows * g.totals_stride;
    of_run += kRows * g.n_runs;
  }
}

// Tiles over a block that has the beginnings or the ends of runs. TSan does not instrument tiles, as in matmul.cc.
template <typename Form, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) static void tiles_of_runs(const Group& group,
                                                                           const Tiles& tiles,
                                                                           const Block& block) {
  if constexpr (Form::kCuts) {
    add_runs<Form, kRows, kPanels>(group, tiles, block);
  } else {
    // No store can change a copy, so what it has stays in registers from run to run.
    const Group g = group;
    const Block b = block;
    add_runs<Form, kRows, kPanels>(g, tiles, b);
  }
}

// Tiles over a block in the middle of a run: the same, but with fewer instructions from tile to tile.
template <typename Form, int kRows, int kPanels>
__attribute__((noinline, no_sanitize("thread"))) static void tiles_in_run(const Group& group,
                                                                          const Tiles& tiles,
                                                                          const Block& block) {
  const Group g = group;
  const Block b = block;
  const size_t x_stride = Form::x_stride(g);
  const typename Form::Factor* of_tile = Form::x_at(g, b);
  typename Form::Sum* sums = static_cast<typename Form::Sum*>(g.sums);
  Fetch fetch = fetch_of<Form, kPanels>(g, tiles, b);
  for (int t = 0, n = tiles.n; t < n; ++t) {
    const typename Form::Factor* x = of_tile;
    const uint8_t* w = g.codes + b.at;
    typename Form::Sums sum[kRows][kPanels];
    load_tile<Form>(sums, sum);
    add_lines<Form>(g.panel_bytes, b.n, x, x_stride, w, fetch, sum);
    store_tile<Form>(sums, sum);
    of_tile += kRows * x_stride;
    sums += kRows * kSumsOfRow;
  }
}

template <typename Form, int kRows, int kPanels>
static void set_fns(Tiles& tiles) {
  tiles.of_runs = tiles_of_runs<Form, kRows, kPanels>;
  tiles.in_run = nullptr;
  if constexpr (Form::kCuts) tiles.in_run = tiles_in_run<Form, kRows, kPanels>;
}
// For tiles of `rows` rows by panels_of(rows) panels or, unless `wide`, by one.
template <typename Form>
static void choose_fns(Tiles& tiles, int rows, bool wide) {
#define SPECD_TILE(n)                                                                         \
  case n:                                                                                     \
    if constexpr ((n) <= Form::kTileRows) {                                                   \
      return wide ? set_fns<Form, n, Form::panels_of(n)>(tiles) : set_fns<Form, n, 1>(tiles); \
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

// Tiles have the same rows or, the first ones, one more.
template <typename Form>
static void set_plan(Plan& plan, int rows, int panels) {
  plan.rows = rows;
  plan.panels = panels;
  plan.n = 0;
  const int n_tiles = (rows + Form::kTileRows - 1) / Form::kTileRows, more = rows % n_tiles;
  for (int tile = 0, first_row = 0, n; tile < n_tiles; tile += n) {
    const int tile_rows = rows / n_tiles + (tile < more ? 1 : 0), wide = Form::panels_of(tile_rows);
    n = tile < more ? more : n_tiles - tile;
    for (int panel = 0, width; panel < panels; panel += width) {
      width = panels - panel >= wide ? wide : 1;
      Tiles& t = plan.tiles[plan.n++];
      choose_fns<Form>(t, tile_rows, width == wide);
      t.n = n;
      t.first_row = static_cast<size_t>(first_row);
      t.first_panel = static_cast<size_t>(panel);
      t.before = tile;
      t.sharing = n_tiles;
    }
    first_row += n * tile_rows;
  }
}

// Bytes of n k in a panel.
template <typename Form>
SPECD_INLINE size_t bytes_of_k(int n) {
  return static_cast<size_t>(n / Form::kStepK * kLine);
}

// The block that begins at k, which is in `run`: as many whole runs as there is room for, or a part of one.
template <typename Form>
SPECD_INLINE Block block_at(const CodeOrder& order, const Run* run, int k) {
  const Run* const end = order.runs + order.n_runs;
  const int room = Form::kCuts ? kBlock - k % kBlock : kBlock;
  const int of_first = run->begin + run->n - k;
  Block b{.runs = run, .n_runs = 1, .k = k};
  b.first_run = static_cast<size_t>(run - order.runs);
  b.at = bytes_of_k<Form>(k);
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

// Multiplies a group, the first panels of `left`. This thread reads the other panels of `left` next, then `after`.
template <typename Form>
static void multiply_group(const Plan& plan, const Group& group, const CodeOrder& order,
                           const Stretch& left, const Stretch& after) {
  Group groups[2 * kStreams];
  for (int i = 0; i < plan.n; ++i) groups[i] = group_from<Form>(group, plan.tiles[i]);
  Place ahead{left, after, 0};
  advance(ahead, kLead);
  const Run* run = order.runs;
  for (int k = 0; k < order.depth;) {
    Block b = block_at<Form>(order, run, k);
    if (ahead.now.panels != 0) b.ahead = ahead.now.codes + ahead.at;
    b.ahead_panels = ahead.now.panels;
    b.ahead_apart = ahead.now.panel_bytes;
    const bool is_inside = Form::kCuts && !b.starts && !b.ends;
    for (int i = 0; i < plan.n; ++i) {
      const Tiles& tiles = plan.tiles[i];
      (is_inside ? tiles.in_run : tiles.of_runs)(groups[i], tiles, b);
    }
    k += b.n;
    run += b.ends ? b.n_runs : 0;
    // What was prefetched behind the end of a panel is not the beginning of the next group.
    const size_t bytes = bytes_of_k<Form>(b.n), rest = ahead.now.panel_bytes - ahead.at;
    advance(ahead, bytes < rest ? bytes : rest);
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
  alignas(64) typename Form::Sum sums[kChunkRows * kSumsOfRow];
  alignas(64) float own_totals[kChunkRows * kSumsOfRow];
  const CodeOrder& order = *a.weights.order;
  const RoundedRows x(order, a.n_rows, a.scratch);
  const Panels m = panels_in(a.weights);
  const size_t n_out = static_cast<size_t>(a.weights.n_out);
  const Share share = panels_of_part(a.weights, part, parts);
  const int n_chunks = (a.n_rows + kChunkRows - 1) / kChunkRows;
  Stretch next = {};
  if (a.next != nullptr && a.next->order != nullptr) {
    next = stretch_of(*a.next, panels_of_part(*a.next, part, parts));
  }
  Stretch rest = stretch_of(a.weights, share);
  Plan plan = {};
  Group group = {};
  group.x = &x;
  group.x_stride = RoundedRows::stride(order);
  group.n_runs = static_cast<size_t>(order.n_runs);
  group.panel_bytes = m.panel_bytes;
  group.sums = sums;
  group.scale_step = static_cast<size_t>(order.n_groups) * kWidth;
  for (int64_t panel = share.begin; panel < share.end; panel += kStreams) {
    const Stretch here = {rest.codes, rest.panels < kStreams ? rest.panels : kStreams,
                          rest.panel_bytes};
    const size_t first = static_cast<size_t>(panel), column = first * kWidth,
                 padded = here.panels * kWidth,
                 columns = n_out - column < padded ? n_out - column : padded;
    // Totals of a single run are written once, straight to `out`; not under TSan, which does not see a tile's writes.
    const bool in_place = !kIsUnderTsan && group.n_runs == 1 && columns == padded;
    group.codes = here.codes;
    group.panels_left = m.n - first;
    group.scale = m.scale + first * group.scale_step;
    group.zero = order.has_zeros ? m.zero + first * group.scale_step : nullptr;
    group.totals_stride = in_place ? n_out : padded;
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const int row = static_cast<int>(int64_t{a.n_rows} * chunk / n_chunks),
                rows = static_cast<int>(int64_t{a.n_rows} * (chunk + 1) / n_chunks) - row,
                panels = static_cast<int>(here.panels);
      if (plan.rows != rows || plan.panels != panels) set_plan<Form>(plan, rows, panels);
      float* const out = a.out + row * n_out + column;
      group.row = static_cast<size_t>(row);
      group.totals = in_place ? out : own_totals;
      const bool again = chunk + 1 < n_chunks;
      multiply_group<Form>(plan, group, order, again ? here : rest, again ? here : next);
      if (in_place) continue;
      for (int r = 0; r < rows; ++r) {
        __builtin_memcpy(out + r * n_out, own_totals + r * padded, sizeof(float) * columns);
      }
    }
    rest.codes += here.panels * rest.panel_bytes;
    rest.panels -= here.panels;
  }
}

}  // namespace specd::kernels::SPECD_ISA
