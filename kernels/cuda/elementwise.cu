// Row-wise ops without a reduction. Same bits as on the CPU.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

dim3 grid_of(int64_t n_rows, int64_t n) {
  return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads), static_cast<unsigned>(n_rows));
}

template <DType kType>
__global__ void embed_kernel(EmbedArgs a) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (i >= a.n) return;
  a.out[r * a.n + i] = widen<kType>(a.table, static_cast<size_t>(a.token[r]) * a.n + i);
}

__global__ void silu_mul_kernel(SiluMulArgs a) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (i >= a.n) return;
  const float g = a.gate_up[r * 2 * a.n + i];
  const float up = a.gate_up[r * 2 * a.n + a.n + i];
  const float silu = __fdiv_rn(g, __fadd_rn(1.0f, exp_strict(__fsub_rn(0.0f, g))));
  a.out[r * a.n + i] = __fmul_rn(silu, up);
}

__global__ void add_bias_kernel(AddBiasArgs a) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t at = int64_t{blockIdx.y} * a.n + i;
  if (i < a.n) a.x[at] = __fadd_rn(a.x[at], a.bias[i]);
}

__global__ void gather_rows_kernel(GatherRowsArgs a) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (i < a.n) a.out[r * a.n + i] = a.x[static_cast<int64_t>(a.row[r]) * a.n + i];
}

}  // namespace

void embed(Stream& any, const EmbedArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  with_type(a.dtype, [&]<DType kType>() {
    embed_kernel<kType><<<grid_of(a.n_rows, a.n), kThreads, 0, stream.handle>>>(a);
  });
  stream.note(cudaGetLastError());
}

void silu_mul(Stream& any, const SiluMulArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  silu_mul_kernel<<<grid_of(a.n_rows, a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void add_bias(Stream& any, const AddBiasArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  add_bias_kernel<<<grid_of(a.n_rows, a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void gather_rows(Stream& any, const GatherRowsArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  gather_rows_kernel<<<grid_of(a.n_rows, a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
