// out[r][j] = sum over k of x[r][k] * w[j][k].
//
// bfloat16 weights use tensor cores with one instruction shape for any number of rows: mma.m16n8k16
// with 16 rows of weights as A and 8 rows of x as B. x is split into two bfloat16, high and low,
// which together keep 16 bits of it.
//
//   Strict: k in tiles of 16, with zeros beyond n_in. The T tiles form 8 segments; tile t is in
//   segment s with T s / 8 <= t < T (s + 1) / 8. Per segment, from zero: for each tile the mma with
//   high, then the one with low. The segments are added in order, regardless of k_segments, or left
//   apart; then T and 8 stand for the tiles and the segments of this rank.
//
// A kernel of its own splits x before, since every block reads all of x. That pays even for one row: if all
// blocks read its float32 values, they read the same few addresses at the same time.
//
// Up to 32 rows, reading the weights is the limit: a warp computes one segment of 16 or 32 outputs, and the
// 8 warps of a block compute all segments. A thread copies 16 bytes of each tile, contiguous within its
// warp, into shared memory up to 7 tiles ahead. The weights do not wait for the kernel before this one.
// With more rows a warp computes 64 outputs by 32 rows and goes through all segments; the warps of a block
// share what they copy. If that gives too few blocks, each segment gets blocks of its own.
//
// float32 and float16 weights: a chain of fused multiply-adds in the CPU's order and with its bits.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kSegments = 8;
constexpr int kWarp = 32;

__host__ __device__ constexpr int32_t tiles_of(int32_t n) { return (n + 15) / 16; }

// ---- layout ------------------------------------------------------------------------------------

// bfloat16: [output tile of 16][k tile of 16][lane][8], each lane's 8 in the order of
// mma.m16n8k16's A. Which k of a tile is where in the instruction is free, if x agrees: lane q of a
// row's four has k = 4 q to 4 q + 3, so that it finds its part of x in 16 bytes.
__global__ void pack_bf16(uint16_t* packed, const uint16_t* source, int32_t n_rows, int32_t n_in,
                          int32_t column_begin) {
  const int64_t k_tiles = tiles_of(n_in);
  const int64_t width = k_tiles * 16;
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= n_rows * width) return;
  const int64_t row = unit / width, k = unit % width;
  const int64_t j = column_begin + row;
  const int lane = static_cast<int>(j % 8) * 4 + static_cast<int>(k % 16) / 4;
  const int element =
      static_cast<int>(k % 4) / 2 * 4 + static_cast<int>(j % 16) / 8 * 2 + static_cast<int>(k % 2);
  packed[((j / 16 * k_tiles + k / 16) * kWarp + lane) * 8 + element] =
      k < n_in ? source[row * n_in + k] : uint16_t{0};
}

// Others: [n_in][n_out], so that neighboring threads read neighboring outputs.
template <typename Element>
__global__ void pack_columns(Element* packed, const Element* source, int32_t n_rows, int32_t n_in,
                             int32_t n_out, int32_t column_begin) {
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= int64_t{n_rows} * n_in) return;
  const int64_t row = unit / n_in, k = unit % n_in;
  packed[k * n_out + column_begin + row] = source[unit];
}

// x as B: [row tile of 8][k tile of 16][lane].
__global__ void split_x(uint4* out, const float* x, int32_t n_rows, int32_t n_in) {
  let_next_start();
  wait_for_previous();
  const int64_t k_tiles = tiles_of(n_in);
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row_tiles = (n_rows + 7) / 8;
  if (unit >= row_tiles * k_tiles * kWarp) return;
  const int lane = static_cast<int>(unit % kWarp);
  const int64_t row = unit / kWarp / k_tiles * 8 + lane / 4;
  const int64_t k = unit / kWarp % k_tiles * 16 + lane % 4 * 4;
  const auto value = [&](int i) {
    return row < n_rows && k + i < n_in ? x[row * n_in + k + i] : 0.0f;
  };
  out[unit] = split_bfloat16(make_float4(value(0), value(1), value(2), value(3)));
}

// ---- tensor cores ------------------------------------------------------------------------------

__device__ inline int32_t segment_begin(int32_t k_tiles, int s, int segments) {
  return static_cast<int32_t>(int64_t{k_tiles} * s / segments);
}

// This lane's part of tiles [first, first + kCount) at tile k. Beyond the end it repeats the last tile,
// whose sums are not stored.
template <int kCount>
__device__ inline void fragments_of(const uint4* (&out)[kCount], const uint4* data, int32_t first,
                                    int32_t tiles, int32_t k_tiles, int32_t k, int lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    out[i] = data + (int64_t{min(first + i, tiles - 1)} * k_tiles + k) * kWarp + lane;
  }
}

// One value of fragment C: output 16 * tile + lane / 4 (+ 8), row 8 * tile + lane % 4 * 2 (+ 1).
__device__ inline void store(float* out, const Sums& c, int64_t j0, int64_t r0, int lane,
                             int32_t n_out, int32_t n_rows) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t j = j0 + lane / 4 + i / 2 * 8;
    const int64_t r = r0 + lane % 4 * 2 + i % 2;
    if (j < n_out && r < n_rows) out[r * n_out + j] = c.v[i];
  }
}

// ---- tensor cores, few rows

template <int kM, int kN, int kStages>
constexpr int kFewBytes = kStages* kSegments* kWarp*(kM + kN) * static_cast<int>(sizeof(uint4));

// For up to 8 * kN rows. grid: groups of kM output tiles; block: a warp per segment, 8 unless kApart; at
// least that share of kFewBytes of shared memory. kStages: tiles of k that a warp has on their way or in
// use. kApart: the sums of segment s go to out + s * part_stride.
template <int kM, int kN, int kStages, bool kApart>
__global__ void __launch_bounds__(kSegments* kWarp, 2)
    matmul_few(const uint4* weights, const uint4* x, float* out, int32_t n_out, int32_t n_rows,
               int32_t k_tiles, int64_t part_stride) {
  const int threads = kApart ? static_cast<int>(blockDim.x) : kSegments * kWarp;
  const int segments = threads / kWarp, stage_size = (kM + kN) * threads;
  constexpr int kTogether = kStages % 4 == 0 ? 4 : 2;  // tiles of one turn of the loop
  static_assert(kStages % kTogether == 0);
  // [stage][kM + kN][thread]: a thread reads what it copied itself, so nobody waits for others.
  extern __shared__ uint4 ring[];
  const int lane = threadIdx.x % kWarp, segment = threadIdx.x / kWarp;
  const int32_t j_tile = static_cast<int32_t>(blockIdx.x) * kM;
  const int32_t j_tiles = tiles_of(n_out), r_tiles = (n_rows + 7) / 8;
  const int32_t begin = segment_begin(k_tiles, segment, segments);
  const int32_t n = segment_begin(k_tiles, segment + 1, segments) - begin;
  const uint4* w[kM];  // the next tiles to copy
  fragments_of(w, weights, j_tile, j_tiles, k_tiles, begin, lane);
  const uint4* b[kN];
  fragments_of(b, x, 0, r_tiles, k_tiles, begin, lane);
  const uint4* const mine = ring + threadIdx.x;
  const SharedAt to = shared_at(ring + threadIdx.x);
  const auto copy_weights = [&](int stage, int tile, bool wanted) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      copy_async(to + (stage * stage_size + m * threads) * kCopyBytes, w[m] + tile * kWarp, wanted);
    }
  };
  const auto copy_x = [&](int stage, int tile, bool wanted) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      copy_async(to + (stage * stage_size + (kM + i) * threads) * kCopyBytes, b[i] + tile * kWarp,
                 wanted);
    }
  };
  const auto advance = [&](int tiles) {
#pragma unroll
    for (int m = 0; m < kM; ++m) w[m] += tiles * kWarp;
#pragma unroll
    for (int i = 0; i < kN; ++i) b[i] += tiles * kWarp;
  };
  let_next_start();
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) copy_weights(i, i, i < n);
  wait_for_previous();  // which wrote x
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) {
    copy_x(i, i, i < n);
    commit_copies();
  }
  advance(kStages - 1);
  Sums sums[kM][kN] = {};
  int stage = 0;
  for (int32_t k = 0; k < n; k += kTogether) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (k + i >= n) break;
      wait_for_groups<kStages - 2>();
      // The stage before this one is free.
      const int free = i > 0 ? stage + i - 1 : stage == 0 ? kStages - 1 : stage - 1;
      copy_weights(free, i, k + i + kStages - 1 < n);
      copy_x(free, i, k + i + kStages - 1 < n);
      commit_copies();
      const uint4* at = mine + (stage + i) * stage_size;
      uint4 a[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) a[m] = at[m * threads];
#pragma unroll
      for (int r = 0; r < kN; ++r) {
        const uint4 v = at[(kM + r) * threads];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(sums[m][r], a[m], v.x, v.y);
          mma(sums[m][r], a[m], v.z, v.w);
        }
      }
    }
    advance(kTogether);
    stage = stage + kTogether == kStages ? 0 : stage + kTogether;
  }
  if constexpr (kApart) {
    float* to = out + segment * part_stride;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        store(to, sums[m][i], int64_t{j_tile + m} * 16, i * 8, lane, n_out, n_rows);
      }
    }
    return;
  }
  __syncthreads();                                // the sums take the place of the ring
  auto* shared = reinterpret_cast<float*>(ring);  // [segment][kM][kN][4][lane]
  static_assert(kSegments * kWarp * kM * kN * 4 * sizeof(float) <= kFewBytes<kM, kN, kStages>);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared[(((segment * kM + m) * kN + n) * 4 + i) * kWarp + lane] = sums[m][n].v[i];
      }
    }
  }
  __syncthreads();
  for (int tile = segment; tile < kM * kN; tile += kSegments) {
    const int m = tile / kN, n = tile % kN;
    if (j_tile + m >= j_tiles || n >= r_tiles) continue;
    Sums total;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = shared[(tile * 4 + i) * kWarp + lane];
#pragma unroll
      for (int s = 1; s < kSegments; ++s) {
        sum = __fadd_rn(sum, shared[((s * kM * kN + tile) * 4 + i) * kWarp + lane]);
      }
      total.v[i] = sum;
    }
    store(out, total, (j_tile + m) * 16, n * 8, lane, n_out, n_rows);
  }
}

// ---- tensor cores, many rows

// A block has 8 warps, kWarpsJ of them along the outputs; a warp has 4 by 4 tiles of outputs and rows. A
// stage has kDepth tiles of k of one segment, fewer at its end; one stage is used while the other is copied.
constexpr int kManyWarps = 8, kManyTiles = 4, kManyStages = 2;
__host__ __device__ constexpr int many_tiles(int warps) { return warps * kManyTiles; }
// Tiles of weights and of x for one tile of k; the same for each kWarpsJ.
constexpr int kManyCopied = many_tiles(2) + many_tiles(4);
template <int kDepth>
constexpr int kManyBytes = kManyStages* kDepth* kManyCopied* kWarp* static_cast<int>(sizeof(uint4));

// grid: (groups of rows, groups of outputs), so that neighbors read the same weights. kParts: (.., ..,
// segments), and the sums of segment s go to out + s * part_stride. kManyBytes of shared memory.
template <int kWarpsJ, int kDepth, bool kParts>
__global__ void __launch_bounds__(kManyWarps* kWarp, 1)
    matmul_many(const uint4* weights, const uint4* x, float* out, int32_t n_out, int32_t n_rows,
                int32_t k_tiles, int64_t part_stride) {
  constexpr int kTilesJ = many_tiles(kWarpsJ), kTilesR = many_tiles(kManyWarps / kWarpsJ);
  constexpr int kCopies = kManyCopied / kManyWarps, kStage = kDepth * kManyCopied * kWarp;
  static_assert(kTilesJ + kTilesR == kManyCopied && kTilesJ % kManyWarps == 0);
  extern __shared__ uint4 ring[];  // [stage][tile of k][weights, then x][lane]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t j_first = static_cast<int32_t>(blockIdx.y) * kTilesJ;
  const int32_t r_first = static_cast<int32_t>(blockIdx.x) * kTilesR;
  const int32_t j_tiles = tiles_of(n_out), r_tiles = (n_rows + 7) / 8;
  const int first_segment = kParts ? static_cast<int>(blockIdx.z) : 0;
  const int end_segment = kParts ? first_segment + 1 : kSegments;
  const int segments = kParts ? static_cast<int>(gridDim.z) : kSegments;
  const int32_t k_first = segment_begin(k_tiles, first_segment, segments);
  // What this thread copies next: of tiles warp, warp + 8 .. of a tile of k; beyond the end the last again.
  const uint4* from[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int32_t tile = warp + i * kManyWarps;
    const int32_t at = tile < kTilesJ ? min(j_first + tile, j_tiles - 1)
                                      : min(r_first + tile - kTilesJ, r_tiles - 1);
    from[i] = (tile < kTilesJ ? weights : x) + (int64_t{at} * k_tiles + k_first) * kWarp + lane;
  }
  // The tiles of a stage, one stage after another. Nothing left: n is 0.
  struct Stage {
    int32_t segment, left, n;  // left: of the segment, from this stage on
  };
  const auto after = [&](Stage at) {
    at.left -= at.n;
    while (at.left == 0 && at.segment + 1 < end_segment) {
      ++at.segment;
      at.left = segment_begin(k_tiles, at.segment + 1, segments) -
                segment_begin(k_tiles, at.segment, segments);
    }
    at.n = min(at.left, kDepth);
    return at;
  };
  const Stage first =
      after({first_segment, segment_begin(k_tiles, first_segment + 1, segments) - k_first, 0});
  const SharedAt ring_at = shared_at(ring + warp * kWarp + lane);
  // Copies [copy_begin, copy_end) of each of n tiles of k.
  const auto copy = [&](int slot, int32_t n, int copy_begin, int copy_end) {
    const SharedAt to = ring_at + slot * (kStage * kCopyBytes);
#pragma unroll
    for (int s = 0; s < kDepth; ++s) {
#pragma unroll
      for (int i = copy_begin; i < copy_end; ++i) {
        copy_async(to + (s * kManyCopied + i * kManyWarps) * kWarp * kCopyBytes,
                   from[i] + s * kWarp, s < n);
      }
    }
  };
  constexpr int kOfWeights = kTilesJ / kManyWarps;  // the first of a thread's copies
  let_next_start();
  copy(0, first.n, 0, kOfWeights);
  wait_for_previous();  // which wrote x
  copy(0, first.n, kOfWeights, kCopies);
  // Added to `from` as late as possible: a copy that is not yet on its way needs its addresses.
  int32_t copied = first.n;
  Stage ahead = after(first);
  const int j_warp = warp % kWarpsJ * kManyTiles, r_warp = warp / kWarpsJ * kManyTiles;
  Sums sums[kManyTiles][kManyTiles] = {}, total[kManyTiles][kManyTiles];
  const auto add = [&](const uint4* at) {
    uint4 a[kManyTiles], b[kManyTiles];
#pragma unroll
    for (int m = 0; m < kManyTiles; ++m) a[m] = at[(j_warp + m) * kWarp];
#pragma unroll
    for (int n = 0; n < kManyTiles; ++n) b[n] = at[(kTilesJ + r_warp + n) * kWarp];
#pragma unroll
    for (int n = 0; n < kManyTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kManyTiles; ++m) mma(sums[m][n], a[m], b[n].x, b[n].y);
    }
#pragma unroll
    for (int n = 0; n < kManyTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kManyTiles; ++m) mma(sums[m][n], a[m], b[n].z, b[n].w);
    }
  };
  int now = 0;  // slot
  for (int segment = first_segment; segment < end_segment; ++segment) {
    int32_t left =
        segment_begin(k_tiles, segment + 1, segments) - segment_begin(k_tiles, segment, segments);
    for (; left > 0; left -= kDepth) {
      wait_for_copies();
      __syncthreads();  // all have the copies of this stage, and have read the one before it
#pragma unroll
      for (int i = 0; i < kCopies; ++i) from[i] += copied * kWarp;
      copied = ahead.n;
      copy(1 - now, copied, 0, kCopies);
      ahead = after(ahead);
      const uint4* at = ring + now * kStage + lane;
      now = 1 - now;
      if (left >= kDepth) {
#pragma unroll
        for (int s = 0; s < kDepth; ++s) add(at + s * kManyCopied * kWarp);
      } else {
        for (int s = 0; s < left; ++s) add(at + s * kManyCopied * kWarp);
      }
    }
#pragma unroll
    for (int m = 0; m < kManyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kManyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][n].v[i] = kParts || segment == 0 ? sums[m][n].v[i]
                                                    : __fadd_rn(total[m][n].v[i], sums[m][n].v[i]);
        }
        if constexpr (!kParts) sums[m][n] = {};
      }
    }
  }
  float* to = kParts ? out + first_segment * part_stride : out;
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kManyTiles; ++n) {
      store(to, total[m][n], (j_first + j_warp + m) * 16, (r_first + r_warp + n) * 8, lane, n_out,
            n_rows);
    }
  }
}

// Adds the segments in order; n: elements of out.
__global__ void join_parts(float* out, const float* parts, int32_t n_parts, int64_t n) {
  let_next_start();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float total = parts[i];
#pragma unroll
  for (int s = 1; s < kSegments; ++s) {
    if (s < n_parts) total = __fadd_rn(total, parts[s * n + i]);
  }
  out[i] = total;
}

// ---- the CPU's order ---------------------------------------------------------------------------

template <DType kType>
__global__ void matmul_chain(MatmulArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t n_in = a.weights.n_in, n_out = a.weights.n_out;
  const int32_t j = blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (j >= n_out) return;
  float total = 0;
  for (int32_t s = 0; s < a.k_segments; ++s) {
    const auto begin = static_cast<int32_t>(int64_t{n_in} * s / a.k_segments);
    const auto end = static_cast<int32_t>(int64_t{n_in} * (s + 1) / a.k_segments);
    float sum = 0;
    for (int32_t k = begin; k < end; ++k) {
      const float w = widen<kType>(a.weights.data, static_cast<size_t>(k) * n_out + j);
      sum = __fmaf_rn(a.x[r * n_in + k], w, sum);
    }
    if (a.apart) a.out[(int64_t{s} * a.n_rows + r) * n_out + j] = sum;
    total = s == 0 ? sum : __fadd_rn(total, sum);
  }
  if (!a.apart) a.out[r * n_out + j] = total;
}

// A launch of matmul_few or matmul_many.
struct Launch {
  const uint4 *weights, *x;  // x: split, x_bytes at the start of the scratch memory
  uint64_t x_bytes;
  float* out;
  int32_t n_out, n, k_tiles;  // n: rows
  int apart;                  // the number of segments that are left apart; 0: all are added
  int64_t part_stride;
};

template <int kM, int kN, int kStages>
void launch_few(CudaStream& stream, const Launch& l) {
  const unsigned blocks = blocks_for(tiles_of(l.n_out), kM);
  const int segments = l.apart == 0 ? kSegments : l.apart;
  const size_t bytes = std::max<size_t>(kFewBytes<kM, kN, kStages> / kSegments * segments,
                                        even_share(stream, blocks));
  const auto launch = [&]<bool kApart>() {
    launch_early(stream, blocks, segments * kWarp, bytes, matmul_few<kM, kN, kStages, kApart>,
                 l.weights, l.x, l.out, l.n_out, l.n, l.k_tiles, l.part_stride);
  };
  l.apart == 0 ? launch.template operator()<false>() : launch.template operator()<true>();
}

void add_parts(CudaStream& stream, float* out, const float* parts, int32_t n_parts, int64_t n) {
  launch_early(stream, blocks_for(n, 256), 256, 0, join_parts, out, parts, n_parts, n);
}

// With so few blocks that they leave half of the device idle, each segment gets a block of its own, if
// there is memory for the parts.
template <int kWarpsJ, int kDepth>
void launch_many(CudaStream& stream, const Launch& l) {
  dim3 grid(blocks_for(l.n, many_tiles(kManyWarps / kWarpsJ) * 8),
            blocks_for(l.n_out, many_tiles(kWarpsJ) * 16));
  const auto launch = [&]<bool kParts>(float* out, int64_t part_stride) {
    launch_early(stream, grid, kManyWarps * kWarp, kManyBytes<kDepth>,
                 matmul_many<kWarpsJ, kDepth, kParts>, l.weights, l.x, out, l.n_out, l.n, l.k_tiles,
                 part_stride);
  };
  if (l.apart > 0) {
    grid.z = static_cast<unsigned>(l.apart);
    return launch.template operator()<true>(l.out, l.part_stride);
  }
  const int64_t elements = int64_t{l.n} * l.n_out;
  const uint64_t parts_bytes = static_cast<uint64_t>(elements) * kSegments * sizeof(float);
  if (grid.x * grid.y > static_cast<unsigned>(stream.multiprocessors) / 2 ||
      l.x_bytes + parts_bytes > stream.scratch_bytes) {
    return launch.template operator()<false>(l.out, 0);
  }
  grid.z = kSegments;
  auto* parts = reinterpret_cast<float*>(stream.scratch + l.x_bytes);
  launch.template operator()<true>(parts, elements);
  add_parts(stream, l.out, parts, kSegments, elements);
}

// 256 outputs by 64 rows of a block, or 128 by 128.
template <int kWarpsJ>
void launch_many(CudaStream& stream, const Launch& l) {
  if (stream.shared_bytes_max >= static_cast<size_t>(kManyBytes<8>)) {
    launch_many<kWarpsJ, 8>(stream, l);
  } else {
    launch_many<kWarpsJ, 4>(stream, l);
  }
}

void matmul_bf16(CudaStream& stream, const MatmulArgs& a) {
  const int32_t n_in = a.weights.n_in, n_out = a.weights.n_out, k_tiles = tiles_of(n_in);
  auto* x = reinterpret_cast<uint4*>(stream.scratch);
  const uint64_t row_tile_bytes = static_cast<uint64_t>(k_tiles) * kWarp * sizeof(uint4);
  const auto rows_at_once =
      static_cast<int32_t>(stream.scratch_bytes / row_tile_bytes / 8) * 64;  // grid unit
  if (rows_at_once == 0) {
    stream.note(cudaErrorMemoryAllocation);  // open() got too small a width_max
    return;
  }
  for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
    const int32_t n = a.n_rows - done < rows_at_once ? a.n_rows - done : rows_at_once;
    const int32_t r_tiles = (n + 7) / 8;
    launch_early(stream, blocks_for(int64_t{r_tiles} * k_tiles * kWarp, 256), 256, 0, split_x, x,
                 a.x + int64_t{done} * n_in, n, n_in);
    const Launch l{.weights = static_cast<const uint4*>(a.weights.data),
                   .x = x,
                   .x_bytes = static_cast<uint64_t>(r_tiles) * row_tile_bytes,
                   .out = a.out + int64_t{done} * n_out,
                   .n_out = n_out,
                   .n = n,
                   .k_tiles = k_tiles,
                   .apart = a.apart ? a.k_segments : 0,
                   .part_stride = int64_t{a.n_rows} * n_out};
    // With so few blocks of 32 outputs that a good part of the device is idle, blocks have 16.
    const auto blocks = static_cast<int>(blocks_for(n_out, 32));
    if (n <= 8 && blocks * 8 < stream.multiprocessors * 7) {
      launch_few<1, 1, 8>(stream, l);
    } else if (n <= 8) {
      launch_few<2, 1, 8>(stream, l);
    } else if (n <= 16) {
      launch_few<2, 2, 6>(stream, l);
    } else if (n <= 32) {
      launch_few<2, 4, 4>(stream, l);
    } else if (n <= 64) {
      launch_many<4>(stream, l);
    } else {
      launch_many<2>(stream, l);
    }
  }
}

}  // namespace

size_t even_share(const CudaStream& stream, unsigned blocks) {
  const size_t each = blocks_for(blocks, stream.multiprocessors), reserved = 1024;
  const size_t share = std::max((stream.shared_bytes_max + reserved) / each, reserved) - reserved;
  return share / 128 * 128;
}

cudaError_t open_matmul(int32_t shared_bytes_max) {
  cudaError_t error = cudaSuccess;
  const auto allow = [&](auto* kernel) {
    if (error != cudaSuccess) return;
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_max);
  };
  allow(matmul_few<1, 1, 8, false>);
  allow(matmul_few<1, 1, 8, true>);
  allow(matmul_few<2, 1, 8, false>);
  allow(matmul_few<2, 1, 8, true>);
  allow(matmul_few<2, 2, 6, false>);
  allow(matmul_few<2, 2, 6, true>);
  allow(matmul_few<2, 4, 4, false>);
  allow(matmul_few<2, 4, 4, true>);
  allow(matmul_many<4, 8, false>);
  allow(matmul_many<4, 8, true>);
  allow(matmul_many<2, 8, false>);
  allow(matmul_many<2, 8, true>);
  allow(matmul_many<4, 4, false>);
  allow(matmul_many<4, 4, true>);
  allow(matmul_many<2, 4, false>);
  allow(matmul_many<2, 4, true>);
  return error;
}

SplitRule split_rule(DType type) {
  return {.grain = type == DType::kBF16 ? 16 : 1, .segments = kSegments};
}

size_t packed_bytes(DType type, int32_t n_out, int32_t n_in) {
  if (type == DType::kBF16) {
    return static_cast<size_t>(tiles_of(n_out)) * static_cast<size_t>(tiles_of(n_in)) * kWarp *
           sizeof(uint4);
  }
  return static_cast<size_t>(n_out) * static_cast<size_t>(n_in) * dtype_bytes(type);
}

void pack(Stream& any, const PackArgs& a) {
  CudaStream& stream = of(any);
  if (a.packed.order != nullptr) return pack_codes(stream, a);
  const size_t row_bytes = static_cast<size_t>(a.packed.n_in) * dtype_bytes(a.packed.dtype);
  const auto rows_at_once = static_cast<int32_t>(stream.scratch_bytes / row_bytes);
  if (rows_at_once == 0) {
    stream.note(cudaErrorMemoryAllocation);
    return;
  }
  for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
    const int32_t n = a.n_rows - done < rows_at_once ? a.n_rows - done : rows_at_once;
    copy_rows_in(stream, stream.scratch,
                 static_cast<const char*>(a.source) + source_stride_bytes(a) * done, row_bytes,
                 source_stride_bytes(a), n);
    const int32_t begin = a.column_begin + done;
    if (a.packed.dtype == DType::kBF16) {
      pack_bf16<<<blocks_for(int64_t{n} * tiles_of(a.packed.n_in) * 16, 256), 256, 0,
                  stream.handle>>>(static_cast<uint16_t*>(a.packed.data),
                                   reinterpret_cast<const uint16_t*>(stream.scratch), n,
                                   a.packed.n_in, begin);
    } else {
      const unsigned blocks = blocks_for(int64_t{n} * a.packed.n_in, 256);
      if (a.packed.dtype == DType::kF32) {
        pack_columns<<<blocks, 256, 0, stream.handle>>>(
            static_cast<uint32_t*>(a.packed.data),
            reinterpret_cast<const uint32_t*>(stream.scratch), n, a.packed.n_in, a.packed.n_out,
            begin);
      } else {
        pack_columns<<<blocks, 256, 0, stream.handle>>>(
            static_cast<uint16_t*>(a.packed.data),
            reinterpret_cast<const uint16_t*>(stream.scratch), n, a.packed.n_in, a.packed.n_out,
            begin);
      }
    }
    stream.note(cudaGetLastError());
  }
  stream.note(cudaStreamSynchronize(stream.handle));  // matmuls read weights before they wait
}

void matmul(Stream& any, const MatmulArgs& a) {
  CudaStream& stream = of(any);
  if (a.n_rows == 0) return;
  if (a.weights.order != nullptr) return matmul_codes(stream, a);
  if (a.weights.dtype == DType::kBF16) {
    matmul_bf16(stream, a);
  } else {
    const dim3 grid(blocks_for(a.weights.n_out, 128), static_cast<unsigned>(a.n_rows));
    if (a.weights.dtype == DType::kF32) {
      launch_early(stream, grid, 128, 0, matmul_chain<DType::kF32>, a);
    } else {
      launch_early(stream, grid, 128, 0, matmul_chain<DType::kF16>, a);
    }
  }
}

void add_segments(Stream& any, const AddSegmentsArgs& a) {
  if (a.n_rows == 0 || a.n == 0) return;
  add_parts(of(any), a.out, a.parts, a.n_parts, int64_t{a.n_rows} * a.n);
}

}  // namespace specd::kernels::cuda
