// out[r][j] = sum over k of x[r][k] * w[j][k].
//
// bfloat16 weights use tensor cores with one instruction shape for any number of rows: mma.m16n8k16
// with 16 rows of weights as A and 8 rows of x as B. x is split into two bfloat16, high and low,
// which together keep 16 bits of it.
//
//   Strict: k in tiles of 16, with zeros beyond n_in. The T tiles form 8 segments; tile t is in
//   segment s with T s / 8 <= t < T (s + 1) / 8. Per segment, from zero: for each tile the mma with
//   high, then the one with low. The segments are added in order, regardless of k_segments.
//
// With few rows, reading the weights is the limit: a warp computes one segment of 16 or 32 outputs,
// and the 8 warps of a block compute all segments. Every lane reads 16 bytes of weights per tile,
// contiguous within its warp, and 8 tiles before it uses the first: 32 KiB of a block are on their
// way at a time. Up to 8 rows, x is split where it is read; else it is split before, since every
// block reads all of it. With many rows a warp computes 64 outputs by 32 rows and goes through all
// segments.
//
// float32 and float16 weights: a chain of fused multiply-adds in the CPU's order and with its bits.
#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kSegments = 8;
constexpr int kWarp = 32;

__host__ __device__ constexpr int64_t tiles_of(int64_t n) { return (n + 15) / 16; }

// ---- layout ------------------------------------------------------------------------------------

// bfloat16: [output tile of 16][k tile of 16][lane][8], each lane's 8 in the order of
// mma.m16n8k16's A.
__global__ void pack_bf16(uint16_t* packed, const uint16_t* source, int32_t n_rows, int32_t n_in,
                          int32_t column_begin) {
  const int64_t k_tiles = tiles_of(n_in);
  const int64_t width = k_tiles * 16;
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (unit >= n_rows * width) return;
  const int64_t row = unit / width, k = unit % width;
  const int64_t j = column_begin + row;
  const int lane = static_cast<int>(j % 8) * 4 + static_cast<int>(k % 8) / 2;
  const int element =
      static_cast<int>(k % 16) / 8 * 4 + static_cast<int>(j % 16) / 8 * 2 + static_cast<int>(k % 2);
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

// A lane's part of B: values k, k + 1, k + 8, k + 9 of its row as {high 0..1, high 8..9, low 0..1,
// low 8..9}.
__device__ inline uint4 fragment_of(const float (&value)[4]) {
  uint32_t high[2] = {}, low[2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat16 first = __float2bfloat16_rn(value[i]);
    const float back = __bfloat162float(first);
    // An infinite value, or one that became infinite, leaves no remainder.
    const __nv_bfloat16 rest = __float2bfloat16_rn(isinf(back) ? 0.0f : __fsub_rn(value[i], back));
    high[i / 2] |= uint32_t{__bfloat16_as_ushort(first)} << (16 * (i % 2));
    low[i / 2] |= uint32_t{__bfloat16_as_ushort(rest)} << (16 * (i % 2));
  }
  return make_uint4(high[0], high[1], low[0], low[1]);
}

// x as B: [row tile of 8][k tile of 16][lane].
__global__ void split_x(uint4* out, const float* x, int32_t n_rows, int32_t n_in) {
  const int64_t k_tiles = tiles_of(n_in);
  const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row_tiles = (n_rows + 7) / 8;
  if (unit >= row_tiles * k_tiles * kWarp) return;
  const int lane = static_cast<int>(unit % kWarp);
  const int64_t row = unit / kWarp / k_tiles * 8 + lane / 4;
  const int64_t k_first = unit / kWarp % k_tiles * 16 + lane % 4 * 2;
  float value[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t k = k_first + i / 2 * 8 + i % 2;
    value[i] = row < n_rows && k < n_in ? x[row * n_in + k] : 0.0f;
  }
  out[unit] = fragment_of(value);
}

// ---- tensor cores ------------------------------------------------------------------------------

__device__ inline int64_t segment_begin(int64_t k_tiles, int s) { return k_tiles * s / kSegments; }

// Start of this lane's part of tiles [first, first + kCount). Beyond the end it repeats the last
// tile, whose sums are not stored.
template <int kCount>
__device__ inline void fragments_of(const uint4* (&out)[kCount], const uint4* data, int64_t first,
                                    int64_t tiles, int64_t k_tiles, int lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int64_t tile = first + i < tiles ? first + i : tiles - 1;
    out[i] = data + tile * k_tiles * kWarp + lane;
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

// x as matmul_few gets it: split, or as it is.
struct SplitX {
  const uint4* data;
};
struct WholeX {
  const float* data;
  int32_t n_in;  // a multiple of 16
};

// For up to 8 * kN rows. grid: groups of kM output tiles; block: 8 warps, one per segment.
template <int kM, int kN, typename X>
__global__ void __launch_bounds__(kSegments* kWarp, 2)
    matmul_few(const uint4* weights, X x, float* out, int32_t n_out, int32_t n_rows,
               int64_t k_tiles) {
  constexpr bool kSplit = std::is_same_v<X, SplitX>;
  static_assert(kSplit || kN == 1, "beyond 8 rows splitting x again costs more than reading it");
  __shared__ float shared[kSegments][kM][kN][4][kWarp];
  const int lane = threadIdx.x % kWarp, segment = threadIdx.x / kWarp;
  const int64_t j_tile = int64_t{blockIdx.x} * kM;
  const int64_t j_tiles = tiles_of(n_out), r_tiles = (n_rows + 7) / 8;
  const uint4* w[kM];
  fragments_of(w, weights, j_tile, j_tiles, k_tiles, lane);
  const uint4* b[kN];
  const float* row = nullptr;  // of x, for this lane; rows beyond the end repeat the last
  if constexpr (kSplit) {
    fragments_of(b, x.data, 0, r_tiles, k_tiles, lane);
  } else {
    row = x.data + int64_t{min(lane / 4, n_rows - 1)} * x.n_in + lane % 4 * 2;
  }
  const auto fragment = [&](int64_t k, int n) {
    if constexpr (kSplit) {
      return __ldg(b[n] + k * kWarp);
    } else {
      const float2 low = __ldg(reinterpret_cast<const float2*>(row + k * 16));
      const float2 high = __ldg(reinterpret_cast<const float2*>(row + k * 16 + 8));
      return fragment_of({low.x, low.y, high.x, high.y});
    }
  };
  constexpr int kAhead = 8 / kM;  // tiles of k that are read before the first is used
  Sums sums[kM][kN] = {};
  const int64_t end = segment_begin(k_tiles, segment + 1);
  for (int64_t k = segment_begin(k_tiles, segment); k < end; k += kAhead) {
    uint4 a[kAhead][kM];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (k + i < end) a[i][m] = read_once(w[m] + (k + i) * kWarp);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (k + i >= end) break;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = fragment(k + i, n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(sums[m][n], a[i][m], v.x, v.y);
          mma(sums[m][n], a[i][m], v.z, v.w);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[segment][m][n][i][lane] = sums[m][n].v[i];
    }
  }
  __syncthreads();
  for (int tile = segment; tile < kM * kN; tile += kSegments) {
    const int m = tile / kN, n = tile % kN;
    if (j_tile + m >= j_tiles || n >= r_tiles) continue;
    Sums total;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = shared[0][m][n][i][lane];
#pragma unroll
      for (int s = 1; s < kSegments; ++s) sum = __fadd_rn(sum, shared[s][m][n][i][lane]);
      total.v[i] = sum;
    }
    store(out, total, (j_tile + m) * 16, n * 8, lane, n_out, n_rows);
  }
}

// grid: (groups of 16 output tiles, groups of 8 row tiles); block: 4 by 2 warps of 4 by 4 tiles.
__global__ void __launch_bounds__(8 * kWarp)
    matmul_many(const uint4* weights, const uint4* x, float* out, int32_t n_out, int32_t n_rows,
                int64_t k_tiles) {
  constexpr int kM = 4, kN = 4;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t j_tile = int64_t{blockIdx.x} * 16 + warp % 4 * kM;
  const int64_t r_tile = int64_t{blockIdx.y} * 8 + warp / 4 * kN;
  const int64_t j_tiles = tiles_of(n_out), r_tiles = (n_rows + 7) / 8;
  if (j_tile >= j_tiles || r_tile >= r_tiles) return;
  const uint4* w[kM];
  const uint4* b[kN];
  fragments_of(w, weights, j_tile, j_tiles, k_tiles, lane);
  fragments_of(b, x, r_tile, r_tiles, k_tiles, lane);
  Sums total[kM][kN];
  for (int segment = 0; segment < kSegments; ++segment) {
    Sums sums[kM][kN] = {};
    const int64_t end = segment_begin(k_tiles, segment + 1);
#pragma unroll 2  // with more, registers spill on sm_100
    for (int64_t k = segment_begin(k_tiles, segment); k < end; ++k) {
      uint4 a[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) a[m] = __ldg(w[m] + k * kWarp);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = __ldg(b[n] + k * kWarp);
#pragma unroll
        for (int m = 0; m < kM; ++m) mma(sums[m][n], a[m], v.x, v.y);
#pragma unroll
        for (int m = 0; m < kM; ++m) mma(sums[m][n], a[m], v.z, v.w);
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][n].v[i] =
              segment == 0 ? sums[m][n].v[i] : __fadd_rn(total[m][n].v[i], sums[m][n].v[i]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if (j_tile + m < j_tiles && r_tile + n < r_tiles) {
        store(out, total[m][n], (j_tile + m) * 16, (r_tile + n) * 8, lane, n_out, n_rows);
      }
    }
  }
}

// ---- the CPU's order ---------------------------------------------------------------------------

template <DType kType>
__global__ void matmul_chain(MatmulArgs a) {
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
    total = s == 0 ? sum : __fadd_rn(total, sum);
  }
  a.out[r * n_out + j] = total;
}

unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// With so few blocks of 32 outputs that they do not fill the device, blocks have 16. Then twice as many
// read x, so only for the fewest rows.
template <int kN, typename X>
void launch_few(CudaStream& stream, const uint4* weights, X x, float* out, int32_t n_out, int32_t n,
                int64_t k_tiles) {
  const unsigned tiles = blocks_for(n_out, 16);
  if constexpr (kN == 1) {
    if (tiles / 2 < static_cast<unsigned>(stream.multiprocessors)) {
      matmul_few<1, kN, X>
          <<<tiles, kSegments * kWarp, 0, stream.handle>>>(weights, x, out, n_out, n, k_tiles);
      return;
    }
  }
  matmul_few<2, kN, X><<<blocks_for(tiles, 2), kSegments * kWarp, 0, stream.handle>>>(
      weights, x, out, n_out, n, k_tiles);
}

void matmul_bf16(CudaStream& stream, const MatmulArgs& a) {
  const int32_t n_in = a.weights.n_in, n_out = a.weights.n_out;
  const int64_t k_tiles = tiles_of(n_in);
  const auto* weights = static_cast<const uint4*>(a.weights.data);
  if (a.n_rows <= 8 && n_in % 16 == 0 && reinterpret_cast<uintptr_t>(a.x) % sizeof(float2) == 0) {
    launch_few<1>(stream, weights, WholeX{a.x, n_in}, a.out, n_out, a.n_rows, k_tiles);
    return;
  }
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
    const int64_t r_tiles = (n + 7) / 8;
    float* out = a.out + int64_t{done} * n_out;
    split_x<<<blocks_for(r_tiles * k_tiles * kWarp, 256), 256, 0, stream.handle>>>(
        x, a.x + int64_t{done} * n_in, n, n_in);
    if (n <= 8) {
      launch_few<1>(stream, weights, SplitX{x}, out, n_out, n, k_tiles);
    } else if (n <= 16) {
      launch_few<2>(stream, weights, SplitX{x}, out, n_out, n, k_tiles);
    } else if (n <= 32) {
      launch_few<4>(stream, weights, SplitX{x}, out, n_out, n, k_tiles);
    } else {
      const dim3 grid(blocks_for(tiles_of(n_out), 16), blocks_for(r_tiles, 8));
      matmul_many<<<grid, 8 * kWarp, 0, stream.handle>>>(weights, x, out, n_out, n, k_tiles);
    }
  }
}

}  // namespace

size_t packed_bytes(DType type, int32_t n_out, int32_t n_in) {
  if (type == DType::kBF16) {
    return static_cast<size_t>(tiles_of(n_out) * tiles_of(n_in)) * kWarp * sizeof(uint4);
  }
  return static_cast<size_t>(n_out) * static_cast<size_t>(n_in) * dtype_bytes(type);
}

void pack(Stream& any, const PackArgs& a) {
  CudaStream& stream = of(any);
  const size_t row_bytes = static_cast<size_t>(a.packed.n_in) * dtype_bytes(a.packed.dtype);
  const auto rows_at_once = static_cast<int32_t>(stream.scratch_bytes / row_bytes);
  if (rows_at_once == 0) {
    stream.note(cudaErrorMemoryAllocation);
    return;
  }
  for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
    const int32_t n = a.n_rows - done < rows_at_once ? a.n_rows - done : rows_at_once;
    copy_in(stream, stream.scratch, static_cast<const char*>(a.source) + row_bytes * done,
            row_bytes * n);
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
}

void matmul(Stream& any, const MatmulArgs& a) {
  CudaStream& stream = of(any);
  if (a.n_rows == 0) return;
  if (a.weights.dtype == DType::kBF16) {
    matmul_bf16(stream, a);
  } else {
    const dim3 grid(blocks_for(a.weights.n_out, 128), static_cast<unsigned>(a.n_rows));
    if (a.weights.dtype == DType::kF32) {
      matmul_chain<DType::kF32><<<grid, 128, 0, stream.handle>>>(a);
    } else {
      matmul_chain<DType::kF16><<<grid, 128, 0, stream.handle>>>(a);
    }
  }
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
