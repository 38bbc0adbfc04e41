// The rotary table, the rotation with KV append, and KV compaction.
//
// Same bits as on the CPU, except for the payload of a NaN and for the table: here cos and sin are
// computed in float64 and rounded.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

__global__ void rope_table_kernel(RopeTableArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t half = a.head_dim / 2;
  const int64_t r = blockIdx.x;
  for (int32_t i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = __fmul_rn(static_cast<float>(a.position[r]), a.inv_freq[i]);
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    a.cos_sin[r * a.head_dim + i] = __fmul_rn(static_cast<float>(cosine), a.scale);
    a.cos_sin[r * a.head_dim + half + i] = __fmul_rn(static_cast<float>(sine), a.scale);
  }
}

constexpr int kWarp = 32, kWarps = 8;

// grid: (rows, groups of 8 heads of q, k or v); a warp per head.
template <DType kType>
__global__ void rope_append_kernel(RopeAppendArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t dim = a.kv.head_dim, half = dim / 2, groups = a.kv.n_kv_heads;
  const int64_t r = blockIdx.x;
  const int32_t head = blockIdx.y * kWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (head >= a.n_heads + 2 * groups) return;
  float* x = a.qkv + (r * (a.n_heads + 2 * groups) + head) * dim;
  const bool is_v = head >= a.n_heads + groups, is_kept = a.slot[r] >= 0;
  if (is_v && !is_kept) return;
  const size_t page = static_cast<size_t>(a.slot[r] / kPageTokens);
  const size_t offset = static_cast<size_t>(a.slot[r] % kPageTokens);
  if (is_v) {
    const size_t g = head - a.n_heads - groups;
    const size_t base = page * a.kv.page_stride + (g * kPageTokens + offset) * dim;
    for (int32_t d = lane; d < dim; d += kWarp) narrow<kType>(a.kv.v, base + d, x[d]);
    return;
  }
  const float* cos_sin = a.cos_sin + r * dim;
  for (int32_t i = lane; i < half; i += kWarp) {
    const float p = x[i], q = x[i + half];
    const float c = cos_sin[i], s = cos_sin[i + half];
    const float low = __fmaf_rn(p, c, __fsub_rn(-0.0f, __fmul_rn(q, s)));
    const float high = __fmaf_rn(q, c, __fmul_rn(p, s));
    x[i] = low;
    x[i + half] = high;
    if (head < a.n_heads || !is_kept) continue;
    const size_t base = page * a.kv.page_stride + (head - a.n_heads) * dim * kPageTokens + offset;
    narrow<kType>(a.kv.k, base + static_cast<size_t>(i) * kPageTokens, low);
    narrow<kType>(a.kv.k, base + static_cast<size_t>(i + half) * kPageTokens, high);
  }
}

// One block per kv head, so that the moves of one head stay in order.
template <typename Element>
__global__ void kv_move_kernel(KvMoveArgs a) {
  const size_t dim = a.kv.head_dim;
  const size_t slab = blockIdx.x * dim * kPageTokens;
  auto* k = static_cast<Element*>(a.kv.k) + slab;
  auto* v = static_cast<Element*>(a.kv.v) + slab;
  for (int32_t i = 0; i < a.n; ++i) {
    const size_t from_page = a.from[i] / kPageTokens * a.kv.page_stride;
    const size_t to_page = a.to[i] / kPageTokens * a.kv.page_stride;
    const size_t from = a.from[i] % kPageTokens, to = a.to[i] % kPageTokens;
    for (size_t d = threadIdx.x; d < dim; d += blockDim.x) {
      k[to_page + d * kPageTokens + to] = k[from_page + d * kPageTokens + from];
      v[to_page + to * dim + d] = v[from_page + from * dim + d];
    }
    // A thread moves the same d each time, so it sees its earlier writes without a barrier.
  }
}

}  // namespace

void rope_table(Stream& any, const RopeTableArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  launch_early(stream, static_cast<unsigned>(a.n_rows), 64, 0, rope_table_kernel, a);
}

void rope_append(Stream& any, const RopeAppendArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  const dim3 grid(static_cast<unsigned>(a.n_rows),
                  static_cast<unsigned>((a.n_heads + 2 * a.kv.n_kv_heads + kWarps - 1) / kWarps));
  with_type(a.kv.dtype, [&]<DType kType>() {
    launch_early(stream, grid, kWarps * kWarp, 0, rope_append_kernel<kType>, a);
  });
}

void kv_move(Stream& any, const KvMoveArgs& a) {
  if (a.n == 0) return;
  CudaStream& stream = of(any);
  const auto blocks = static_cast<unsigned>(a.kv.n_kv_heads);
  if (dtype_bytes(a.kv.dtype) == 4) {
    kv_move_kernel<uint32_t><<<blocks, 128, 0, stream.handle>>>(a);
  } else {
    kv_move_kernel<uint16_t><<<blocks, 128, 0, stream.handle>>>(a);
  }
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
