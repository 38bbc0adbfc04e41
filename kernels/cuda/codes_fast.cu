// `numerics: fast`: the matmul of E4M3FN on tensor cores. Codes are widened exactly to bfloat16, x is rounded to
// bfloat16, and the products of a run are added by mma(), so the bits are not those of codes.h. A row still has
// the same bits whatever stands beside it. An infinity of x may become a NaN.
//
// The panels are those of codes.cuh. mma() adds over its 16 k in any order, so A and B may permute them alike: lane
// q of four fills the k that the instruction calls 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 with 4 q, 4 q + 2, 4 q + 1
// and 4 q + 3, because widen() separates even bytes from odd ones, and gather_rows() stores x in that order. The
// warps of a block share the chunks of a panel of 32 columns, and add what they got in shared memory.
#include <algorithm>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kWarpsMax = 8;                       // of a block
constexpr int kRowTile = 8;                        // rows of an mma
constexpr int kColumnTiles = 2;                    // of 16 columns, of a panel
constexpr int kChunk = chunk_of(8);                // also the k of an mma
constexpr int kXPieces = kChunk * 2 / kCopyBytes;  // of x of a row for a chunk
constexpr uint32_t kTwice2To112 = 0x77807780u;     // two bfloat16

// In shared memory: for each warp a ring of stages, each with a chunk of the weights and of x; then, in its place,
// the totals of each warp, [row][kTotals].
template <int kRowTiles>
struct Shared {
  static constexpr int kRows = kRowTiles * kRowTile;
  static constexpr int kStages = kRowTiles <= 2 ? 8 : 4;
  static constexpr int kX = kRows * kXPieces;
  static constexpr int kStage = kWarp + kX;  // of 16 bytes
  static constexpr int kTotals = kWarp + 4;  // so that a warp stores a tile into different banks
  static constexpr size_t kBytes = size_t{kStages * kStage} * sizeof(uint4);  // of a warp
  static_assert(kRows * kTotals * sizeof(float) <= kBytes);
};

// Four codes, as the k 4 q to 4 q + 3 of a column: the even two, then the odd two. Exponent and mantissa, moved to
// those of a bfloat16, are the value / 2^120, also for subnormals. The result is the value / 256, as the scales of
// the panel expect.
__device__ inline uint2 widen(uint32_t codes) {
  const uint32_t even = (codes << 8 & 0x80008000u) | (codes << 4 & 0x07f007f0u),
                 odd = (codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u);
  return make_uint2(multiply_pairs(even, kTwice2To112), multiply_pairs(odd, kTwice2To112));
}

// grid: (groups of rows, panels), so that neighbors read the same weights.
template <int kRowTiles>
__global__ void __launch_bounds__(kWarpsMax* kWarp, kRowTiles <= 2 ? 2 : 1)
    multiply_e4m3(MultiplyArgs a) {
  using Room = Shared<kRowTiles>;
  constexpr int kStages = Room::kStages, kStage = Room::kStage, kRows = Room::kRows;
  extern __shared__ uint4 ring[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int group = lane / 4, quarter = lane % 4;  // as the PTX ISA numbers the lanes of mma()
  const int64_t panel = blockIdx.y;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kRows, chunks = a.weights.chunks;
  const auto begin = static_cast<int32_t>(int64_t{chunks} * warp / warps),
             end = static_cast<int32_t>(int64_t{chunks} * (warp + 1) / warps);

  uint4* const own_ring = ring + warp * kStages * kStage;
  const SharedAt to = shared_at(own_ring + lane);
  const uint4* const weights = a.weights.codes + panel * chunks * kWarp + lane;
  const auto copy_weights = [&](int stage, int32_t chunk) {
    copy_async(to + stage * kStage * kCopyBytes, weights + int64_t{chunk} * kWarp, chunk < end);
  };
  // Rows beyond the last are the last again, and are not stored.
  const auto copy_x = [&](int stage, int32_t chunk) {
#pragma unroll
    for (int i = 0; i < Room::kX; i += kWarp) {
      const int piece = i + lane;
      const int64_t row = min(first_row + piece / kXPieces, a.n_rows - 1);
      copy_async(to + (stage * kStage + kWarp + i) * kCopyBytes,
                 a.x + (row * chunks + chunk) * kXPieces + piece % kXPieces,
                 chunk < end && piece < Room::kX);
    }
  };
  let_next_start();
#pragma unroll 1
  for (int i = 0; i + 1 < kStages; ++i) copy_weights(i, begin + i);

  // The run that has k.
  const auto run_of = [&](int32_t k) {
    for (int32_t first = 0;; first += kWarp) {
      const Run run = a.runs[min(first + lane, a.n_runs - 1)];
      const uint32_t ends_later = __ballot_sync(0xffffffffu, run.begin + run.n > k);
      if (ends_later != 0) return first + __ffs(static_cast<int>(ends_later)) - 1;
    }
  };
  int32_t at = run_of(begin * kChunk);
  Run run = a.runs[at], next = a.runs[min(at + 1, a.n_runs - 1)];
  float scale[2 * kColumnTiles];  // of columns group + 8 i
  const auto read_scales = [&] {
#pragma unroll
    for (int i = 0; i < 2 * kColumnTiles; ++i) {
      scale[i] = a.weights.scale[(panel * a.weights.groups + run.group) * kWarp + i * 8 + group];
    }
  };
  read_scales();

  wait_for_previous();  // which wrote x
#pragma unroll 1
  for (int i = 0; i + 1 < kStages; ++i) {
    copy_x(i, begin + i);
    commit_copies();
  }
  Sums totals[kColumnTiles][kRowTiles] = {}, sums[kColumnTiles][kRowTiles] = {};
  int stage = 0;
#pragma unroll 1
  for (int32_t chunk = begin; chunk < end; ++chunk) {
    wait_for_groups<kStages - 2>();
    __syncwarp();  // all have what was copied, and have read the stage before
    const int free = stage == 0 ? kStages - 1 : stage - 1;
    copy_weights(free, chunk + kStages - 1);
    copy_x(free, chunk + kStages - 1);
    commit_copies();
    const uint4* const here = own_ring + stage * kStage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    // The words of columns group + 8 i.
    uint32_t words[2 * kColumnTiles];
#pragma unroll
    for (int i = 0; i < 2 * kColumnTiles; ++i) {
      words[i] = reinterpret_cast<const uint32_t*>(here)[i * kWarp + lane];
    }
    const int32_t k = chunk * kChunk, own_k = k + quarter * 4;
    // Adds each run's part of the chunk.
    for (;;) {
      const bool is_in_run = own_k >= run.begin && own_k < run.begin + run.n;
      uint4 codes[kColumnTiles];
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
        const uint2 upper = widen(is_in_run ? words[2 * m] : 0),
                    lower = widen(is_in_run ? words[2 * m + 1] : 0);
        codes[m] = make_uint4(upper.x, lower.x, upper.y, lower.y);
      }
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const uint2 x =
            reinterpret_cast<const uint2*>(here + kWarp + t * kRowTile * kXPieces)[lane];
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m) mma(sums[m][t], codes[m], x.x, x.y);
      }
      const int32_t run_end = run.begin + run.n;
      const bool ends_here = run_end <= k + kChunk;
      if (!ends_here && chunk + 1 < end) break;  // goes on in this warp's next chunk
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[m][t].v[i] = __fmaf_rn(sums[m][t].v[i], scale[2 * m + i / 2], totals[m][t].v[i]);
          }
          sums[m][t] = {};
        }
      }
      if (!ends_here || at + 1 == a.n_runs) break;
      ++at;
      run = next;
      next = a.runs[min(at + 1, a.n_runs - 1)];
      read_scales();
      if (run_end == k + kChunk) break;
    }
  }

  __syncthreads();  // all have read their rings
  auto* const all = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int m = 0; m < kColumnTiles; ++m) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = t * kRowTile + quarter * 2 + i % 2, column = m * 16 + i / 2 * 8 + group;
        all[(warp * kRows + row) * Room::kTotals + column] = totals[m][t].v[i];
      }
    }
  }
  __syncthreads();
  const int64_t column = panel * kWarp + lane;
#pragma unroll 1
  for (int r = warp; r < kRows; r += warps) {
    const int64_t row = first_row + r;
    if (row >= a.n_rows || column >= a.n_out) continue;
    float total = 0;
    for (int w = 0; w < warps; ++w) {
      total = __fadd_rn(total, all[(w * kRows + r) * Room::kTotals + lane]);
    }
    a.out[row * a.n_out + column] = total;
  }
}

// Calls fn.template operator()<kRowTiles>() with the fewest tiles that hold the rows, or with 4.
template <typename Fn>
void with_row_tiles(int32_t n_rows, const Fn& fn) {
  if (n_rows <= kRowTile) return fn.template operator()<1>();
  if (n_rows <= 2 * kRowTile) return fn.template operator()<2>();
  fn.template operator()<4>();
}

}  // namespace

cudaError_t open_codes_fast(int32_t shared_bytes_max) {
  cudaError_t error = cudaSuccess;
  for (const int32_t n_rows : {kRowTile, 2 * kRowTile, 4 * kRowTile}) {
    with_row_tiles(n_rows, [&]<int kRowTiles>() {
      if (error != cudaSuccess) return;
      error = cudaFuncSetAttribute(reinterpret_cast<const void*>(multiply_e4m3<kRowTiles>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_max);
    });
  }
  return error;
}

void multiply_codes_fast(CudaStream& stream, const MultiplyArgs& a) {
  with_row_tiles(a.n_rows, [&]<int kRowTiles>() {
    using Room = Shared<kRowTiles>;
    const dim3 grid(blocks_for(a.n_rows, Room::kRows), blocks_for(a.n_out, kWarp));
    const int warps = std::min(a.weights.chunks, kWarpsMax);
    const size_t bytes =
        std::max(static_cast<size_t>(warps) * Room::kBytes, even_share(stream, grid.x * grid.y));
    launch_early(stream, grid, warps * kWarp, bytes, multiply_e4m3<kRowTiles>, a);
  });
}

}  // namespace specd::kernels::cuda
