// Residual add and RMSNorm, one block per row.
//
// Strict: 256 partial sums; element i goes to sum i % 256 by fused multiply-add in increasing i;
// the sums are added as a tree (stride 128, 64, .., 1). The CPU uses 16 sums.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 8;  // elements that a thread reads before it uses the first

// out = x / sqrt(mean + eps) * weight, each thread for its share of a row, after every thread has
// put its sum of squares into `sums`. out may be x: a thread reads only what it writes.
__device__ void normalize(const float* x, const float* weight, float* out, int32_t n, float eps,
                          float* sums) {
  const int t = threadIdx.x;
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (t < stride) sums[t] = __fadd_rn(sums[t], sums[t + stride]);
  }
  __syncthreads();
  const float root = __fsqrt_rn(__fadd_rn(__fdiv_rn(sums[0], static_cast<float>(n)), eps));
  for (int32_t first = t; first < n; first += kAhead * kThreads) {
    float each[kAhead], times[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t at = first + i * kThreads;
      if (at < n) each[i] = x[at], times[i] = __ldg(weight + at);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t at = first + i * kThreads;
      if (at < n) out[at] = __fmul_rn(__fdiv_rn(each[i], root), times[i]);
    }
  }
}

__global__ void rmsnorm_kernel(RmsNormArgs a) {
  __shared__ float sums[kThreads];
  const int64_t first = int64_t{blockIdx.x} * a.n;
  const int t = threadIdx.x;
  let_next_start();
  wait_for_previous();
  float sum = 0;
  for (int32_t begin = t; begin < a.n; begin += kAhead * kThreads) {
    float x[kAhead], delta[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t at = begin + i * kThreads;
      if (at >= a.n) continue;
      x[i] = a.x[first + at];
      if (a.delta != nullptr) delta[i] = a.delta[first + at];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t at = begin + i * kThreads;
      if (at >= a.n) continue;
      if (a.delta != nullptr) {
        x[i] = __fadd_rn(x[i], delta[i]);
        a.x[first + at] = x[i];
      }
      sum = __fmaf_rn(x[i], x[i], sum);
    }
  }
  if (a.out == nullptr) return;
  sums[t] = sum;
  normalize(a.x + first, a.weight, a.out + first, a.n, a.eps, sums);
}

// One block per row and head of q or k.
__global__ void head_norm_kernel(HeadNormArgs a) {
  __shared__ float sums[kThreads];
  const int32_t head = blockIdx.y;
  float* x = a.qkv + (int64_t{blockIdx.x} * (a.n_heads + 2 * a.n_kv_heads) + head) * a.head_dim;
  let_next_start();
  wait_for_previous();
  float sum = 0;
  for (int32_t i = threadIdx.x; i < a.head_dim; i += kThreads) sum = __fmaf_rn(x[i], x[i], sum);
  sums[threadIdx.x] = sum;
  normalize(x, head < a.n_heads ? a.q_weight : a.k_weight, x, a.head_dim, a.eps, sums);
}

}  // namespace

void rmsnorm(Stream& any, const RmsNormArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  launch_early(stream, static_cast<unsigned>(a.n_rows), kThreads, 0, rmsnorm_kernel, a);
}

void head_norm(Stream& any, const HeadNormArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  const dim3 grid(static_cast<unsigned>(a.n_rows), static_cast<unsigned>(a.n_heads + a.n_kv_heads));
  launch_early(stream, grid, kThreads, 0, head_norm_kernel, a);
}

}  // namespace specd::kernels::cuda
