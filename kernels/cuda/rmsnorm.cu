// Residual add and RMSNorm, one block a row.
//
// Strict: 256 partial sums, element i in sum i % 256 by fused multiply-add in increasing i, added
// as a tree (stride 128, 64, .., 1). Not the CPU's 16.
#include "kernels/cuda/backend.h"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rmsnorm_kernel(RmsNormArgs a) {
  __shared__ float sums[kThreads];
  const int64_t first = int64_t{blockIdx.x} * a.n;
  const int t = threadIdx.x;
  float sum = 0;
  for (int32_t i = t; i < a.n; i += kThreads) {
    float x = a.x[first + i];
    if (a.delta != nullptr) {
      x = __fadd_rn(x, a.delta[first + i]);
      a.x[first + i] = x;
    }
    sum = __fmaf_rn(x, x, sum);
  }
  if (a.out == nullptr) return;
  sums[t] = sum;
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (t < stride) sums[t] = __fadd_rn(sums[t], sums[t + stride]);
  }
  __syncthreads();
  const float root = __fsqrt_rn(__fadd_rn(__fdiv_rn(sums[0], static_cast<float>(a.n)), a.eps));
  for (int32_t i = t; i < a.n; i += kThreads) {
    a.out[first + i] = __fmul_rn(__fdiv_rn(a.x[first + i], root), a.weight[i]);
  }
}

}  // namespace

void rmsnorm(Stream& any, const RmsNormArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  rmsnorm_kernel<<<static_cast<unsigned>(a.n_rows), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
