// Attention over pages. A cache of bfloat16 has an implementation of its own where a device can have it
// (attention_tiles.cu).
//
// Strict, but in another order than the CPU: positions in parts of 128 absolute positions.
//   Within a part: score = fma chain over d from zero, times scale; m = the largest;
//     p_j = exp(score_j - m), 0 beyond position[r]; l = the 128 p_j, added as a tree
//     (stride 64, .., 1); acc[d] = fma chain of p_j v_j[d] from zero over the visible j.
//     The scales of a cache in 8 bits are multiplied where the CPU does it (specd/kernels/attention.h).
//   Parts in order: m' = max(M, m); c = exp(M - m'), e = exp(m - m'); L = fma(L, c, l * e);
//     A[d] = fma(A[d], c, acc[d] * e).
//   out = A / L.
//
// There are two schedules: with few rows the parts of a row are shared by several blocks, and a
// second kernel joins them; with many rows one block goes through all parts of its row. Parts are
// small so that one sequence alone gives many blocks (64 at 1024 positions of 8 kv heads), and so
// that a thread has one position. It reads K in a loop over d and V in one over positions, 32 at a
// time: 8 KiB of a block are on their way, of bfloat16. With few rows there may be fewer blocks than
// multiprocessors, for which that is too little, and eight waits for memory follow one another. So in
// that schedule a block first copies the pages of its part into shared memory, if there is enough of
// it: 64 KiB are on their way at once, of bfloat16 and heads of 128.
#include <algorithm>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = kPart;
constexpr int kHeads = 4;  // query heads of one kv head that a block computes together

// Device code may read a constant, but not call the host's kv_dtype_bytes().
template <KvDType kType>
constexpr size_t kElementBytes = kv_dtype_bytes(kType);

struct Shared {
  // Those of a block's heads are read together, with one instruction.
  alignas(16) float q[kDimMax][kHeads];
  alignas(16) float p[kPart][kHeads];
  float sums[kHeads][kThreads];
  int32_t slot[kPart];
  size_t v[kPart];  // the first element of a position's V
};

// Copies of the pages of a part in dynamic shared memory: K [page][head_dim + 1][kPageTokens], where
// the added row puts the two pages that a warp reads into different banks, then V
// [page][kPageTokens][head_dim].
__host__ __device__ constexpr size_t staged_k_elements(int32_t head_dim) {
  return static_cast<size_t>(kPart) * (head_dim + 1);
}
constexpr size_t staged_bytes(KvDType type, int32_t head_dim) {
  return (staged_k_elements(head_dim) + static_cast<size_t>(kPart) * head_dim) *
         kv_dtype_bytes(type);
}

// Reduces shared.sums as a tree; every thread gets the result.
template <typename Fn>
__device__ void reduce(Shared& shared, float out[kHeads], Fn&& join_two) {
  const int t = threadIdx.x;
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (t >= stride) continue;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      shared.sums[h][t] = join_two(shared.sums[h][t], shared.sums[h][t + stride]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) out[h] = shared.sums[h][0];
}

// Copies K and V of the positions [begin, end) of a part, with the rest of their pages. REQUIRES
// begin < end, and their shared.slot is written. All threads see the copies after it.
template <KvDType kType>
__device__ void stage_pages(const AttentionArgs& a, const Shared& shared, char* stage, int32_t g,
                            int begin, int end) {
  constexpr size_t kElement = kElementBytes<kType>;
  const int32_t dim = a.kv.head_dim;
  const size_t page_bytes = kPageTokens * kElement * dim;
  const auto* k = static_cast<const char*>(a.kv.k);
  const auto* v = static_cast<const char*>(a.kv.v);
  __syncthreads();
  for (int page = begin / kPageTokens; page * kPageTokens < end; ++page) {
    // Any visible position of a page names it; the first may be hidden by the window.
    const int32_t first =
        shared.slot[min(page * kPageTokens + kPageTokens, end) - 1] / kPageTokens * kPageTokens;
    char* k_to = stage + page * (page_bytes + kPageTokens * kElement);
    char* v_to =
        stage + (staged_k_elements(dim) + static_cast<size_t>(page) * kPageTokens * dim) * kElement;
    const char* k_from = k + k_at(a.kv, first, g) * kElement;
    const char* v_from = v + v_at(a.kv, first, g) * kElement;
    for (size_t at = threadIdx.x * kCopyBytes; at < page_bytes; at += kThreads * kCopyBytes) {
      copy_async(shared_at(k_to + at), k_from + at);
      copy_async(shared_at(v_to + at), v_from + at);
    }
  }
  wait_for_copies();
  __syncthreads();
}

// One part of one row for the query heads in shared.q, of kv head g. Every thread gets m[h] and
// l[h], and acc[h][i] for d = threadIdx.x + i * kThreads. stage: where the part's pages are copied
// to; unused if not kStaged.
template <KvDType kType, bool kStaged>
__device__ void one_part(const AttentionArgs& a, Shared& shared, char* stage, int64_t row,
                         int32_t g, int32_t part, float m[kHeads], float l[kHeads],
                         float acc[kHeads][kDimMax / kThreads]) {
  const int t = threadIdx.x;
  const int32_t dim = a.kv.head_dim;
  const int32_t first = part * kPart, last = a.position[row], span = a.span[row];
  const int32_t visible = min(last - first + 1, kPart);
  const int32_t hidden = max(window_begin(a, row) - first, 0);  // positions before the window
  const bool seen = t >= hidden && t < visible;
  __syncthreads();  // q is there, and all threads have finished reading the last part
  const int32_t p = first + t;
  int32_t slot = 0;
  if (seen) {
    slot = p < span ? a.pages[a.table[row] + p / kPageTokens] * kPageTokens + p % kPageTokens
                    : a.tail[a.tail_begin[row] + p - span];
    shared.slot[t] = slot;
    shared.v[t] = v_at(a.kv, slot, g);
  }
  // Positions before this one are read from the stage.
  const int staged_end = kStaged ? max(min(span - first, visible), hidden) : hidden;
  if constexpr (kStaged) {
    if (hidden < staged_end) stage_pages<kType>(a, shared, stage, g, hidden, staged_end);
  }
  float score[kHeads] = {};
  const auto dot = [&](const void* k, size_t at) {
#pragma unroll 32
    for (int32_t d = 0; d < dim; ++d) {
      const float key = widen<kType>(k, at + static_cast<size_t>(d) * kPageTokens);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) score[h] = __fmaf_rn(shared.q[d][h], key, score[h]);
    }
  };
  if (kStaged && seen && t < staged_end) {
    dot(stage, static_cast<size_t>(t / kPageTokens) * (dim + 1) * kPageTokens + t % kPageTokens);
  } else if (seen) {
    dot(a.kv.k, k_at(a.kv, slot, g));
  }
  float key_scale = a.scale, value_scale = 1;
  if constexpr (kType == KvDType::kF8E4M3) key_scale = __fmul_rn(a.scale, a.kv.k_scale);
  if constexpr (kType == KvDType::kInt8) {
    if (seen) {
      key_scale = __fmul_rn(a.scale, a.kv.k_row_scale[row_scale_at(a.kv, slot, g)]);
      value_scale = a.kv.v_row_scale[row_scale_at(a.kv, slot, g)];
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    score[h] = __fmul_rn(score[h], key_scale);
    shared.sums[h][t] = seen ? score[h] : -INFINITY;
  }
  reduce(shared, m, [](float x, float y) { return x > y ? x : y; });
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float p = seen ? exp_strict(__fsub_rn(score[h], m[h])) : 0.0f;
    shared.p[t][h] = kType == KvDType::kInt8 ? __fmul_rn(p, value_scale) : p;
    shared.sums[h][t] = p;
  }
  reduce(shared, l, [](float x, float y) { return __fadd_rn(x, y); });

#pragma unroll
  for (int i = 0; i < kDimMax / kThreads; ++i) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) acc[h][i] = 0;
    const int32_t d = t + i * kThreads;
    if (d >= dim) continue;
    const auto add = [&](int j, const void* v, size_t at) {
      const float value = widen<kType>(v, at + d);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) acc[h][i] = __fmaf_rn(shared.p[j][h], value, acc[h][i]);
    };
    if constexpr (kStaged) {
#pragma unroll 8
      for (int j = hidden; j < staged_end; ++j) {
        add(j, stage, staged_k_elements(dim) + static_cast<size_t>(j) * dim);
      }
    }
#pragma unroll 32
    for (int j = staged_end; j < visible; ++j) add(j, a.kv.v, shared.v[j]);
  }
}

// Adds one part to M, L and A. Each thread handles different d.
__device__ inline void join(float& m, float& l, float* acc, int n, float part_m, float part_l,
                            const float* part_acc) {
  const JoinFactors factors = factors_of(m, part_m);
  l = joined(l, part_l, factors);
  for (int i = 0; i < n; ++i) acc[i] = joined(acc[i], part_acc[i], factors);
  m = factors.m;
}

__device__ inline float mean_of(const KvLayer& kv, float acc, float l) {
  const float mean = __fdiv_rn(acc, l);
  return kv.dtype == KvDType::kF8E4M3 ? __fmul_rn(mean, kv.v_scale) : mean;
}

__device__ void load_q(const AttentionArgs& a, Shared& shared, int64_t row, int32_t head,
                       int32_t n_heads) {
  const int32_t dim = a.kv.head_dim;
  const float* q = a.qkv + (row * (a.n_heads + 2 * a.kv.n_kv_heads) + head) * dim;
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    shared.q[d][h] = h < n_heads ? q[i] : 0.0f;  // unused heads compute zeros
  }
}

// grid: (rows, kv heads * groups of kHeads). One block goes through all parts.
template <KvDType kType>
__global__ void __launch_bounds__(kThreads, 4) attention_rows(AttentionArgs a, int32_t groups) {
  __shared__ Shared shared;
  let_next_start();
  wait_for_previous();
  constexpr int kDims = kDimMax / kThreads;
  const int64_t row = blockIdx.x;
  const int32_t per_kv = a.n_heads / a.kv.n_kv_heads, dim = a.kv.head_dim;
  const int32_t g = blockIdx.y / groups, h0 = blockIdx.y % groups * kHeads;
  const int32_t n_heads = min(per_kv - h0, kHeads), head = g * per_kv + h0;
  load_q(a, shared, row, head, n_heads);
  float M[kHeads], L[kHeads], A[kHeads][kDims];
  for (int h = 0; h < kHeads; ++h) {
    M[h] = -INFINITY, L[h] = 0;
    for (int i = 0; i < kDims; ++i) A[h][i] = 0;
  }
  const int32_t parts = parts_of(a.position[row]);
  for (int32_t part = window_begin(a, row) / kPart; part < parts; ++part) {
    float m[kHeads], l[kHeads], acc[kHeads][kDims];
    one_part<kType, false>(a, shared, nullptr, row, g, part, m, l, acc);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) join(M[h], L[h], A[h], kDims, m[h], l[h], acc[h]);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int32_t d = threadIdx.x + i * kThreads;
      if (h < n_heads && d < dim) {
        a.out[(row * a.n_heads + head + h) * dim + d] =
            parts > 0 ? mean_of(a.kv, A[h][i], L[h]) : 0;
      }
    }
  }
}

// grid: (rows, kv heads * groups, blocks for the parts of a row): writes [row][head][part]{m, l, acc}.
// kStaged: dynamic shared memory of staged_bytes().
template <KvDType kType, bool kStaged>
__global__ void __launch_bounds__(kThreads, 4)
    attention_parts(AttentionArgs a, int32_t groups, int32_t parts_max, float* scratch) {
  __shared__ Shared shared;
  extern __shared__ uint4 stage[];
  let_next_start();
  wait_for_previous();
  constexpr int kDims = kDimMax / kThreads;
  const int64_t row = blockIdx.x;
  const int32_t per_kv = a.n_heads / a.kv.n_kv_heads, dim = a.kv.head_dim;
  const int32_t g = blockIdx.y / groups, h0 = blockIdx.y % groups * kHeads;
  const int32_t n_heads = min(per_kv - h0, kHeads), head = g * per_kv + h0;
  const int32_t parts = parts_of(a.position[row]);
  if (parts > parts_max) __trap();  // the device was opened with too small a positions_max
  const int32_t first = window_begin(a, row) / kPart + blockIdx.z;
  if (first >= parts) return;
  load_q(a, shared, row, head, n_heads);
  for (int32_t part = first; part < parts; part += gridDim.z) {
    float m[kHeads], l[kHeads], acc[kHeads][kDims];
    one_part<kType, kStaged>(a, shared, reinterpret_cast<char*>(stage), row, g, part, m, l, acc);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= n_heads) continue;
      float* to = scratch + ((row * a.n_heads + head + h) * parts_max + part) * part_floats(dim);
      if (threadIdx.x == 0) to[0] = m[h], to[1] = l[h];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int32_t d = threadIdx.x + i * kThreads;
        if (d < dim) to[2 + d] = acc[h][i];
      }
    }
  }
}

// grid: (rows, heads)
__global__ void attention_join(AttentionArgs a, int32_t parts_max, const float* scratch) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int32_t head = blockIdx.y, dim = a.kv.head_dim;
  const float* from = scratch + (row * a.n_heads + head) * int64_t{parts_max} * part_floats(dim);
  const int32_t parts = parts_of(a.position[row]);
  for (int32_t d = threadIdx.x; d < dim; d += blockDim.x) {
    float m = -INFINITY, l = 0, acc = 0;
#pragma unroll 8
    for (int32_t part = window_begin(a, row) / kPart; part < parts; ++part) {
      const float* each = from + part * part_floats(dim);
      join(m, l, &acc, 1, each[0], each[1], each + 2 + d);
    }
    a.out[(row * a.n_heads + head) * int64_t{dim} + d] = parts > 0 ? mean_of(a.kv, acc, l) : 0;
  }
}

template <KvDType kType>
void launch_parts(CudaStream& stream, const AttentionArgs& a, dim3 grid, int32_t groups,
                  int32_t parts_max, float* scratch) {
  const size_t bytes = staged_bytes(kType, a.kv.head_dim);
  const bool aligned = (reinterpret_cast<uintptr_t>(a.kv.k) | reinterpret_cast<uintptr_t>(a.kv.v) |
                        a.kv.page_stride * kv_dtype_bytes(kType)) %
                           kCopyBytes ==
                       0;
  if (aligned && bytes + sizeof(Shared) <= stream.shared_bytes_max) {
    launch_early(stream, grid, kThreads, bytes, attention_parts<kType, true>, a, groups, parts_max,
                 scratch);
  } else {
    launch_early(stream, grid, kThreads, 0, attention_parts<kType, false>, a, groups, parts_max,
                 scratch);
  }
}

}  // namespace

cudaError_t open_attention(int32_t shared_bytes_max) {
  cudaError_t error = cudaSuccess;
  for (const KvDType type :
       {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kF8E4M3, KvDType::kInt8}) {
    with_type(type, [&]<KvDType kType>() {
      if (error != cudaSuccess) return;
      error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&attention_parts<kType, true>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared_bytes_max - static_cast<int32_t>(sizeof(Shared)));
    });
  }
  return error == cudaSuccess ? open_attention_tiles(shared_bytes_max) : error;
}

void launch_join(CudaStream& stream, const AttentionArgs& a, int32_t parts_max,
                 const float* scratch) {
  const dim3 grid(static_cast<unsigned>(a.n_rows), static_cast<unsigned>(a.n_heads));
  launch_early(stream, grid, kThreads, 0, attention_join, a, parts_max, scratch);
}

void attention(Stream& any, const AttentionArgs& a) {
  CudaStream& stream = of(any);
  if (a.n_rows == 0) return;
  if (a.kv.head_dim > kDimMax) {
    stream.note(cudaErrorInvalidValue);
    return;
  }
  if (attention_tiles(stream, a)) return;
  const int32_t per_kv = a.n_heads / a.kv.n_kv_heads;
  const int32_t groups = (per_kv + kHeads - 1) / kHeads;
  const auto heads = static_cast<unsigned>(a.kv.n_kv_heads * groups);
  const int32_t parts_max = (stream.positions_max + kPart - 1) / kPart;
  const uint64_t row_bytes = static_cast<uint64_t>(a.n_heads) * static_cast<uint64_t>(parts_max) *
                             static_cast<uint64_t>(part_floats(a.kv.head_dim)) * sizeof(float);
  const auto rows_at_once = static_cast<int32_t>(
      std::min<uint64_t>(stream.scratch_bytes / row_bytes, static_cast<uint64_t>(a.n_rows)));
  const auto device = static_cast<unsigned>(stream.multiprocessors);
  const bool few = static_cast<unsigned>(a.n_rows) * heads < 4 * device;
  if (few && parts_max > 1 && rows_at_once > 0) {
    auto* scratch = reinterpret_cast<float*>(stream.scratch);
    for (int32_t done = 0; done < a.n_rows; done += rows_at_once) {
      const auto rows = static_cast<unsigned>(std::min(rows_at_once, a.n_rows - done));
      const AttentionArgs piece = rows_of(a, done, static_cast<int32_t>(rows));
      // Enough to fill the device, not one for each part that the longest context could have.
      const unsigned blocks =
          std::min(static_cast<unsigned>(parts_max), 8 * device / (rows * heads));
      with_type(a.kv.dtype, [&]<KvDType kType>() {
        launch_parts<kType>(stream, piece, dim3(rows, heads, blocks), groups, parts_max, scratch);
      });
      launch_join(stream, piece, parts_max, scratch);
    }
  } else {
    const dim3 grid(static_cast<unsigned>(a.n_rows), heads);
    with_type(a.kv.dtype, [&]<KvDType kType>() {
      launch_early(stream, grid, kThreads, 0, attention_rows<kType>, a, groups);
    });
  }
}

}  // namespace specd::kernels::cuda
