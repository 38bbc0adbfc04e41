// Attention over a cache of bfloat16, with tensor cores.
//
// Strict: positions in parts of 128 absolute positions, in tiles of 16. A column is a query head of a row.
// q and p are each split into two bfloat16, high and low, which keep 16 of their bits.
//   Within a part: score = for each 16 of d in order, from zero, the mma with high, then the one with low;
//     times scale. m = the largest; p_j = exp(score_j - m), 0 where the row does not see j.
//     l: the p_j of four neighbors as (0 + 1) + (2 + 3), these 32 sums as a tree (distance 16, 8, .., 1).
//     acc[d] = for each tile in order, from zero, the mma with high, then the one with low.
//   Parts in order, as factors_of() and joined() say. out = A / L.
//
// A column of an mma is computed by itself, so rows that see the same positions share their K and V: a
// block has up to 32 columns. Rows share a part if all of them see all of its positions in pages of the
// same table; each computes its other parts alone, with zeros for V that it does not see.
//
// Two schedules. With few rows the parts of a row are spread over blocks, and attention_join adds them. With
// many rows one block goes through all shared parts of its rows; then one block per row goes on from there
// with the others.
//
// A block needs 100 KiB of shared memory for heads of up to 128, 180 KiB for heads of 256. Devices that have
// less, such as compute capability 8.6 and 8.9, use attention.cu.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTile = 16, kTiles = kPart / kTile;  // positions; of a part
constexpr int kColumns = 32, kColumnTiles = kColumns / 8;
static_assert(kTile == kPageTokens);

// A block's shared memory: Fixed, then q [d tile][column tile][lane], then K and V of a part.
struct Fixed {
  // The part's scores, then p as B of the mma: [tile][column tile][lane].
  union {
    float score[kColumns][kPart + 4];
    uint4 p[kTiles][kColumnTiles][kWarp];
  };
  float m[kColumns], l[kColumns];  // of the part
  float total_m[kColumns], total_l[kColumns];
  JoinFactors factors[kColumns];
};
// K: [page][d][2 halves of 8 positions], the halves of d with d / 4 odd swapped, so that the 8 rows that
// an instruction reads lie in different banks. V: [tile][k of the mma][d], rows longer by 16 bytes for the
// same reason.
__host__ __device__ constexpr int32_t k_bytes(int32_t dim) { return kPart * dim * 2; }
__host__ __device__ constexpr int32_t v_row_bytes(int32_t dim) { return dim * 2 + 16; }
__host__ __device__ constexpr int32_t q_bytes(int32_t dim) {
  return dim / kTile * kColumnTiles * kWarp * 16;
}
constexpr size_t shared_bytes(int32_t dim) {
  return sizeof(Fixed) +
         static_cast<size_t>(q_bytes(dim) + k_bytes(dim) + kPart * v_row_bytes(dim));
}
__device__ inline int32_t k_half(int32_t page, int32_t d, int32_t half, int32_t dim) {
  return ((page * dim + d) * 2 + (half ^ (d / 4 % 2))) * 16;
}
// The k of the mma that a position of a tile has: lane q of four has k 2 q, 2 q + 1, 2 q + 8, 2 q + 9, and
// these are the positions 4 q .. 4 q + 3.
__device__ inline int32_t k_of(int32_t position) {
  return position / 4 * 2 + position % 2 + position / 2 % 2 * 8;
}

// Rows [first, first + n) of one kv head and group of its query heads.
struct Columns {
  int32_t row, n_rows, head, n_heads;  // n_heads: of each row
  __device__ int32_t n() const { return n_rows * n_heads; }
  // The place of a column in [row][head].
  __device__ int64_t row_head(int32_t column, int32_t heads_of_row) const {
    return int64_t{row + column / n_heads} * heads_of_row + head + column % n_heads;
  }
};
// How the heads of a kv head are cut, and how many rows a block has.
struct Shape {
  int32_t heads_of_group, groups, rows_of_block;
  __host__ __device__ int32_t units() const { return rows_of_block > 1 ? 1 + rows_of_block : 1; }
};

struct Block {
  const AttentionArgs& a;
  Fixed& fixed;
  uint4* q;
  char* k;
  char* v;
  int32_t g;
  int32_t table;  // of the rows
  Columns columns;
};

__device__ inline int32_t lowest_of_warp(int32_t value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = min(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// The first n parts, which all of the rows share, and their table. Rows that see nothing do not count.
struct SharedParts {
  int32_t n, table;
};
__device__ SharedParts shared_parts(const AttentionArgs& a, int32_t row, int32_t n_rows) {
  if (n_rows == 1) return {0, 0};
  const int lane = threadIdx.x % kWarp;
  const int32_t mine = row + min(lane, n_rows - 1);
  const int32_t position = a.position[mine];
  const bool sees = position >= 0;
  const int32_t table = a.table[mine];
  const int32_t lowest = lowest_of_warp(sees ? table : INT32_MAX);
  const bool same = table == lowest && window_begin(a, mine) == 0;
  const int32_t parts = lowest_of_warp(!sees  ? INT32_MAX
                                       : same ? min(a.span[mine], position + 1) / kPart
                                              : 0);
  return {parts == INT32_MAX ? 0 : parts, lowest};
}

__device__ void load_q(const Block& b) {
  const AttentionArgs& a = b.a;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t dim = a.kv.head_dim, width = (a.n_heads + 2 * a.kv.n_kv_heads) * dim;
  for (int32_t tile = 0; tile * 8 < b.columns.n(); ++tile) {
    const int32_t column = tile * 8 + lane / 4;
    const bool exists = column < b.columns.n();
    const float* from = a.qkv + int64_t{b.columns.row + column / b.columns.n_heads} * width +
                        (b.columns.head + column % b.columns.n_heads) * dim + lane % 4 * 2;
#pragma unroll 2
    for (int32_t d = warp * kTile; d < dim; d += kWarps * kTile) {
      const auto at = [&](int i) { return exists ? from[d + i] : 0.0f; };
      b.q[(d / kTile * kColumnTiles + tile) * kWarp + lane] =
          split_bfloat16(make_float4(at(0), at(1), at(8), at(9)));
    }
  }
}

// What of a part its columns see: positions [begin, end) of it, those before `paged` in pages.
struct Seen {
  int32_t begin, end, paged;
};

// Copies the part's K and V, and q if it is not there yet. Of every tile with a position that is seen, all is
// written.
__device__ void stage(const Block& b, int32_t part, const Seen& seen, bool needs_q) {
  const AttentionArgs& a = b.a;
  const int32_t dim = a.kv.head_dim, row = b.columns.row;
  const auto* k = static_cast<const char*>(a.kv.k);
  const auto* v = static_cast<const char*>(a.kv.v);
  const bool has_pages = seen.begin < seen.paged;
  const int32_t first_tile = seen.begin / kTile;
  if (has_pages) {
    const int lane = threadIdx.x % kWarp;
    const SharedAt k_to = shared_at(b.k), v_to = shared_at(b.v);
    const int32_t* pages = a.pages + b.table + part * kTiles;
    const int32_t end_tile = (seen.paged + kTile - 1) / kTile;
    const int32_t my_page = lane >= first_tile && lane < end_tile ? pages[lane] : 0;
    // Of a page 2 * dim times 16 bytes of K, [d][half], and of V, [position][8 of d].
    const int32_t chunks = dim / 8, mine = static_cast<int32_t>(threadIdx.x);
    const int32_t v_first = mine / chunks, c_first = mine % chunks;
    const int32_t v_step = kThreads / chunks, c_step = kThreads % chunks;
    for (int32_t tile = first_tile; tile < end_tile; ++tile) {
      const int32_t slot = __shfl_sync(0xffffffffu, my_page, tile) * kPageTokens;
      const char* k_from = k + k_at(a.kv, slot, b.g) * 2;
      const char* v_from = v + v_at(a.kv, slot, b.g) * 2;
      const SharedAt v_tile = v_to + tile * kTile * v_row_bytes(dim);
      int32_t at = v_first, chunk = c_first;
      for (int32_t i = mine; i < 2 * dim; i += kThreads) {
        copy_async(k_to + k_half(tile, i / 2, i % 2, dim), k_from + i * 16);
        copy_async(v_tile + k_of(at) * v_row_bytes(dim) + chunk * 16, v_from + i * 16);
        at += v_step, chunk += c_step;
        if (chunk >= chunks) chunk -= chunks, ++at;
      }
    }
  }
  if (needs_q) load_q(b);  // while the copies are on their way
  wait_for_copies();
  if (has_pages && seen.paged == seen.end) return;
  // The tail, and zeros around it.
  const int32_t tail_begin = has_pages ? seen.paged : first_tile * kTile;
  const int32_t tail_end = (seen.end + kTile - 1) / kTile * kTile;
  __syncthreads();  // the page of the first may have been copied
  for (int32_t i = threadIdx.x; i < (tail_end - tail_begin) * dim; i += kThreads) {
    const int32_t j = tail_begin + i / dim, d = i % dim, tile = j / kTile, at = j % kTile;
    uint16_t key = 0, value = 0;
    if (j >= seen.begin && j < seen.end && j >= seen.paged) {
      const int32_t slot = a.tail[a.tail_begin[row] + part * kPart + j - a.span[row]];
      key = static_cast<const uint16_t*>(
          a.kv.k)[k_at(a.kv, slot, b.g) + static_cast<size_t>(d) * kPageTokens];
      value = static_cast<const uint16_t*>(a.kv.v)[v_at(a.kv, slot, b.g) + d];
    }
    *reinterpret_cast<uint16_t*>(b.k + k_half(tile, d, at / 8, dim) + at % 8 * 2) = key;
    *reinterpret_cast<uint16_t*>(b.v + (tile * kTile + k_of(at)) * v_row_bytes(dim) + d * 2) =
        value;
  }
}

// Scores. A warp has one tile. kCTiles: tiles of columns that there may be.
template <int kCTiles>
__device__ void multiply_k(const Block& b, const Seen& seen) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t dim = b.a.kv.head_dim, column_tiles = (b.columns.n() + 7) / 8;
  const SharedAt k = shared_at(b.k);
  static_assert(kTiles == kWarps);
  const int32_t tile = warp;
  if (tile * kTile >= seen.end || (tile + 1) * kTile <= seen.begin) return;
  Sums sums[kCTiles] = {};
#pragma unroll 4
  for (int32_t d = 0; d < dim; d += kTile) {
    // Matrices: d 0..7 of both halves, then d 8..15.
    const int32_t at = d + lane / 16 * 8 + lane % 8;
    const uint4 key = load_transposed(k + k_half(tile, at, lane / 8 % 2, dim));
#pragma unroll
    for (int c = 0; c < kCTiles; ++c) {
      if (c >= column_tiles) break;
      const uint4 query = b.q[(d / kTile * kColumnTiles + c) * kWarp + lane];
      mma(sums[c], key, query.x, query.y);
      mma(sums[c], key, query.z, query.w);
    }
  }
#pragma unroll
  for (int c = 0; c < kCTiles; ++c) {
    if (c >= column_tiles) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      b.fixed.score[c * 8 + lane % 4 * 2 + j % 2][tile * kTile + lane / 4 + j / 2 * 8] =
          __fmul_rn(sums[c].v[j], b.a.scale);
    }
  }
}

// m, l and p of the part. kRunning: and the factors that join it with what came before.
template <int kCTiles, bool kRunning>
__device__ void weigh(const Block& b, const Seen& seen) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kTurns = kCTiles * 8 / kWarps;
  uint4 parts[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t column = turn * kWarps + warp;
    if (column >= b.columns.n()) break;
    float p[4], m = -INFINITY;
    bool visible[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t j = lane * 4 + i;
      visible[i] = j >= seen.begin && j < seen.end;
      p[i] = visible[i] ? b.fixed.score[column][j] : -INFINITY;
      m = m > p[i] ? m : p[i];
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, m, distance);
      m = m > other ? m : other;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = visible[i] ? exp_strict(__fsub_rn(p[i], m)) : 0.0f;
    float l = __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3]));
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, distance));
    }
    if (lane == 0) {
      b.fixed.m[column] = m, b.fixed.l[column] = l;
      if constexpr (kRunning) {
        const JoinFactors factors = factors_of(b.fixed.total_m[column], m);
        b.fixed.factors[column] = factors;
        b.fixed.total_m[column] = factors.m;
        b.fixed.total_l[column] = joined(b.fixed.total_l[column], l, factors);
      }
    }
    parts[turn] = split_bfloat16(make_float4(p[0], p[1], p[2], p[3]));
  }
  __syncthreads();  // p takes the place of the scores
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t column = turn * kWarps + warp;
    if (column >= (b.columns.n() + 7) / 8 * 8) break;
    b.fixed.p[lane / 4][column / 8][column % 8 * 4 + lane % 4] =
        column < b.columns.n() ? parts[turn] : make_uint4(0, 0, 0, 0);
  }
}

// acc[i] is of the d tile warp + i * kWarps.
template <int kDTiles, int kCTiles>
__device__ void multiply_v(const Block& b, const Seen& seen, bool all_seen,
                           Sums (&acc)[kDTiles][kCTiles]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t dim = b.a.kv.head_dim, column_tiles = (b.columns.n() + 7) / 8;
  const SharedAt v = shared_at(b.v);
#pragma unroll
  for (int i = 0; i < kDTiles; ++i) {
#pragma unroll
    for (int c = 0; c < kCTiles; ++c) acc[i][c] = {};
  }
  for (int32_t tile = seen.begin / kTile; tile * kTile < seen.end; ++tile) {
    uint32_t mask[2] = {0xffffffffu, 0xffffffffu};  // of V at this lane's positions
    if (!all_seen) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t j = tile * kTile + lane % 4 * 4 + i;
        if (j < seen.begin || j >= seen.end) mask[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
      }
    }
    uint4 p[kCTiles];
#pragma unroll
    for (int c = 0; c < kCTiles; ++c) {
      if (c < column_tiles) p[c] = b.fixed.p[tile][c][lane];
    }
#pragma unroll
    for (int i = 0; i < kDTiles; ++i) {
      const int32_t d = (warp + i * kWarps) * kTile;
      if (d >= dim) break;
      // Matrices: k 0..7 of both halves of d, then k 8..15.
      const int32_t k = tile * kTile + lane / 16 * 8 + lane % 8;
      uint4 value = load_transposed(v + k * v_row_bytes(dim) + (d + lane / 8 % 2 * 8) * 2);
      value.x &= mask[0], value.y &= mask[0], value.z &= mask[1], value.w &= mask[1];
#pragma unroll
      for (int c = 0; c < kCTiles; ++c) {
        if (c >= column_tiles) break;
        mma(acc[i][c], value, p[c].x, p[c].y);
        mma(acc[i][c], value, p[c].z, p[c].w);
      }
    }
  }
}

// Calls fn(data of the column, d, sum) for each sum that this thread has and that exists.
template <int kDTiles, int kCTiles, typename Of, typename Fn>
__device__ void for_each(const Block& b, Sums (&acc)[kDTiles][kCTiles], Of&& of, Fn&& fn) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int c = 0; c < kCTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t column = c * 8 + lane % 4 * 2 + j;
      if (column >= b.columns.n()) continue;
      const auto data = of(column);
#pragma unroll
      for (int i = 0; i < kDTiles * 2; ++i) {
        const int32_t d = (warp + i / 2 * kWarps) * kTile + lane / 4 + i % 2 * 8;
        if (d < b.a.kv.head_dim) fn(data, d, acc[i / 2][c].v[j + i % 2 * 2]);
      }
    }
  }
}

// One part. kShared: all columns see all of it.
template <int kDTiles, int kCTiles, bool kShared, bool kRunning>
__device__ void one_part(const Block& b, int32_t part, bool is_first,
                         Sums (&acc)[kDTiles][kCTiles]) {
  Seen seen{0, kPart, kPart};
  if constexpr (!kShared) {
    const int32_t row = b.columns.row, first = part * kPart;
    seen.begin = max(window_begin(b.a, row) - first, 0);
    seen.end = min(b.a.position[row] - first + 1, kPart);
    seen.paged = min(max(b.a.span[row] - first, 0), seen.end);
  }
  __syncthreads();  // all have finished reading the part before
  stage(b, part, seen, is_first);
  __syncthreads();
  multiply_k<kCTiles>(b, seen);
  __syncthreads();
  weigh<kCTiles, kRunning>(b, seen);
  __syncthreads();
  multiply_v(b, seen, kShared, acc);
}

__device__ Block block_of(const AttentionArgs& a, const Shape& shape, uint4* memory, int32_t table,
                          int32_t row, int32_t n_rows) {
  const int32_t dim = a.kv.head_dim, per_kv = a.n_heads / a.kv.n_kv_heads;
  const int32_t g = static_cast<int32_t>(blockIdx.y) / shape.groups;
  const int32_t h = static_cast<int32_t>(blockIdx.y) % shape.groups * shape.heads_of_group;
  auto* at = reinterpret_cast<char*>(memory);
  Fixed& fixed = *reinterpret_cast<Fixed*>(at);
  at += sizeof(Fixed);
  return {a,
          fixed,
          reinterpret_cast<uint4*>(at),
          at + q_bytes(dim),
          at + q_bytes(dim) + k_bytes(dim),
          g,
          table,
          {row, n_rows, g * per_kv + h, min(shape.heads_of_group, per_kv - h)}};
}

// The parts first, first + step, .. below last: writes [row][head][part]{m, l, acc}.
template <int kDTiles, int kCTiles, bool kShared>
__device__ void parts(const Block& b, int32_t first, int32_t last, int32_t step, int32_t parts_max,
                      float* scratch) {
  const Columns& columns = b.columns;
  const int32_t floats = part_floats(b.a.kv.head_dim);
  for (int32_t part = first; part < last; part += step) {
    Sums acc[kDTiles][kCTiles];
    one_part<kDTiles, kCTiles, kShared, false>(b, part, part == first, acc);
    const auto entry = [&](int32_t column) {
      return scratch + (columns.row_head(column, b.a.n_heads) * parts_max + part) * floats;
    };
    for_each(b, acc, entry, [](float* to, int32_t d, float sum) { to[2 + d] = sum; });
    const auto column = static_cast<int32_t>(threadIdx.x);
    if (column < columns.n())
      entry(column)[0] = b.fixed.m[column], entry(column)[1] = b.fixed.l[column];
  }
}

// grid: (blocks of rows * units, kv heads * groups, blocks for the parts of a row). Several rows have one
// unit for the parts that they share, then one per row for the rest; a single row has one unit. kOwn: tiles of columns of a
// row.
template <int kDTiles, int kOwn>
__global__ void __launch_bounds__(kThreads, kDTiles == 1 ? 2 : 1)
    tiles_parts(AttentionArgs a, Shape shape, int32_t parts_max, float* scratch) {
  extern __shared__ uint4 memory[];
  let_next_start();
  wait_for_previous();
  const int32_t units = shape.units();
  const int32_t row = static_cast<int32_t>(blockIdx.x) / units * shape.rows_of_block;
  const int32_t n_rows = min(a.n_rows - row, shape.rows_of_block);
  // -1: what they share
  const int32_t own = static_cast<int32_t>(blockIdx.x) % units - (units > 1 ? 1 : 0);
  if (own >= n_rows) return;
  const SharedParts shared = shared_parts(a, row, n_rows);
  const auto z = static_cast<int32_t>(blockIdx.z), step = static_cast<int32_t>(gridDim.z);
  if (own < 0) {
    if (z >= shared.n) return;
    const Block b = block_of(a, shape, memory, shared.table, row, n_rows);
    parts<kDTiles, kColumnTiles, true>(b, z, shared.n, step, parts_max, scratch);
    return;
  }
  const int32_t first = max(shared.n, window_begin(a, row + own) / kPart) + z;
  const int32_t last = parts_of(a.position[row + own]);
  if (last > parts_max) __trap();  // the device was opened with too small a positions_max
  if (first >= last) return;
  const Block b = block_of(a, shape, memory, a.table[row + own], row + own, 1);
  parts<kDTiles, kOwn, false>(b, first, last, step, parts_max, scratch);
}

// All shared parts of a block of rows, or the rest of one row's parts. grid: (blocks of rows or rows,
// kv heads * groups). state: [row][head]{M, L, A}, written by the first, read by the second.
template <int kDTiles, int kCTiles, bool kShared>
__global__ void __launch_bounds__(kThreads, kDTiles == 1 ? 2 : 1)
    tiles_rows(AttentionArgs a, Shape shape, float* state) {
  extern __shared__ uint4 memory[];
  let_next_start();
  wait_for_previous();
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int32_t block_row = (kShared ? index : index / shape.rows_of_block) * shape.rows_of_block;
  const int32_t n_rows = min(a.n_rows - block_row, shape.rows_of_block);
  const SharedParts shared = shared_parts(a, block_row, n_rows);
  if (kShared && shared.n == 0) return;
  const int32_t row = kShared ? block_row : index;
  const Block b =
      block_of(a, shape, memory, kShared ? shared.table : a.table[row], row, kShared ? n_rows : 1);
  const Columns& columns = b.columns;
  const int32_t dim = a.kv.head_dim;
  const bool goes_on = !kShared && shared.n > 0;
  const int32_t first = kShared ? 0 : max(shared.n, window_begin(a, row) / kPart);
  const int32_t last = kShared ? shared.n : parts_of(a.position[row]);
  const auto entry = [&](int32_t column) {
    return state + columns.row_head(column, a.n_heads) * part_floats(dim);
  };
  Sums total[kDTiles][kCTiles] = {}, acc[kDTiles][kCTiles];
  const auto mine = static_cast<int32_t>(threadIdx.x);
  if (mine < columns.n()) {
    const float* from = entry(mine);
    b.fixed.total_m[mine] = goes_on ? from[0] : -INFINITY;
    b.fixed.total_l[mine] = goes_on ? from[1] : 0.0f;
  }
  if (goes_on) {
    for_each(b, total, entry, [](const float* from, int32_t d, float& sum) { sum = from[2 + d]; });
  }
  const int lane = threadIdx.x % kWarp;
  for (int32_t part = first; part < last; ++part) {
    one_part<kDTiles, kCTiles, kShared, true>(b, part, part == first, acc);
#pragma unroll
    for (int c = 0; c < kCTiles; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int32_t column = c * 8 + lane % 4 * 2 + j;
        if (column >= columns.n()) continue;
        const JoinFactors factors = b.fixed.factors[column];
#pragma unroll
        for (int i = 0; i < kDTiles * 2; ++i) {
          float& sum = total[i / 2][c].v[j + i % 2 * 2];
          sum = joined(sum, acc[i / 2][c].v[j + i % 2 * 2], factors);
        }
      }
    }
  }
  __syncthreads();
  if constexpr (kShared) {
    if (mine < columns.n()) {
      float* to = entry(mine);
      to[0] = b.fixed.total_m[mine], to[1] = b.fixed.total_l[mine];
    }
    for_each(b, total, entry, [](float* to, int32_t d, float sum) { to[2 + d] = sum; });
  } else {
    struct Out {
      float* to;
      float l;
    };
    for_each(
        b, total,
        [&](int32_t column) {
          return Out{a.out + columns.row_head(column, a.n_heads) * dim, b.fixed.total_l[column]};
        },
        [&](const Out& out, int32_t d, float sum) {
          out.to[d] = last > 0 ? __fdiv_rn(sum, out.l) : 0.0f;
        });
  }
}

// Calls fn<tiles of d of a warp, tiles of columns of a row>.
template <typename Fn>
void with_tiles(int32_t dim, int32_t heads_of_group, Fn&& fn) {
  const bool one_d = dim <= kWarps * kTile, one_column = heads_of_group <= 8;
  if (one_d && one_column) {
    fn.template operator()<1, 1>();
  } else if (one_d) {
    fn.template operator()<1, kColumnTiles>();
  } else if (one_column) {
    fn.template operator()<2, 1>();
  } else {
    fn.template operator()<2, kColumnTiles>();
  }
}

}  // namespace

cudaError_t open_attention_tiles(int32_t shared_bytes_max) {
  cudaError_t error = cudaSuccess;
  const auto allow = [&](auto* kernel) {
    if (error != cudaSuccess) return;
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_max);
  };
  for (const int32_t dim : {kDimMax / 2, kDimMax}) {
    for (const int32_t heads : {1, kColumns}) {
      with_tiles(dim, heads, [&]<int kDTiles, int kOwn>() {
        allow(tiles_parts<kDTiles, kOwn>);
        allow(tiles_rows<kDTiles, kColumnTiles, true>);
        allow(tiles_rows<kDTiles, kOwn, false>);
      });
    }
  }
  return error;
}

bool attention_tiles(CudaStream& stream, const AttentionArgs& a) {
  const int32_t dim = a.kv.head_dim, per_kv = a.n_heads / a.kv.n_kv_heads;
  const size_t bytes = shared_bytes(dim);
  const bool aligned = (reinterpret_cast<uintptr_t>(a.kv.k) | reinterpret_cast<uintptr_t>(a.kv.v) |
                        a.kv.page_stride * 2) %
                           kCopyBytes ==
                       0;
  if (a.kv.dtype != KvDType::kBF16 || !aligned || bytes > stream.shared_bytes_max) return false;
  Shape shape{.heads_of_group = std::min(per_kv, kColumns),
              .groups = (per_kv + kColumns - 1) / kColumns,
              .rows_of_block = 0};
  shape.rows_of_block = kColumns / shape.heads_of_group;
  const auto heads = static_cast<unsigned>(a.kv.n_kv_heads * shape.groups);
  const auto device = static_cast<unsigned>(stream.multiprocessors);
  const int32_t parts_max = (stream.positions_max + kPart - 1) / kPart;
  const uint64_t head_row_bytes =
      static_cast<uint64_t>(a.n_heads) * sizeof(float) * static_cast<uint64_t>(part_floats(dim));
  const uint64_t parts_bytes = head_row_bytes * static_cast<uint64_t>(parts_max);
  const bool few = static_cast<unsigned>(a.n_rows) * heads < 4 * device && parts_max > 1 &&
                   parts_bytes <= stream.scratch_bytes;
  const auto fitting = static_cast<int32_t>(
      std::min<uint64_t>(stream.scratch_bytes / (few ? parts_bytes : head_row_bytes),
                         static_cast<uint64_t>(a.n_rows)));
  if (fitting == 0) {
    stream.note(cudaErrorMemoryAllocation);
    return true;
  }
  auto* scratch = reinterpret_cast<float*>(stream.scratch);
  for (int32_t done = 0; done < a.n_rows; done += fitting) {
    const int32_t rows = std::min(fitting, a.n_rows - done);
    const AttentionArgs piece = rows_of(a, done, rows);
    shape.rows_of_block = std::min(shape.rows_of_block, rows);
    const auto blocks =
        static_cast<unsigned>((rows + shape.rows_of_block - 1) / shape.rows_of_block);
    with_tiles(dim, shape.heads_of_group, [&]<int kDTiles, int kOwn>() {
      if (few) {
        const unsigned units = blocks * static_cast<unsigned>(shape.units());
        // Enough to fill the device, not one for each part that the longest context could have.
        const unsigned spread = std::clamp(8 * device / (static_cast<unsigned>(rows) * heads), 1u,
                                           static_cast<unsigned>(parts_max));
        launch_early(stream, dim3(units, heads, spread), kThreads, bytes,
                     tiles_parts<kDTiles, kOwn>, piece, shape, parts_max, scratch);
      } else {
        if (shape.rows_of_block > 1)
          launch_early(stream, dim3(blocks, heads), kThreads, bytes,
                       tiles_rows<kDTiles, kColumnTiles, true>, piece, shape, scratch);
        launch_early(stream, dim3(static_cast<unsigned>(rows), heads), kThreads, bytes,
                     tiles_rows<kDTiles, kOwn, false>, piece, shape, scratch);
      }
    });
    if (few) launch_join(stream, piece, parts_max, scratch);
  }
  return true;
}

}  // namespace specd::kernels::cuda
