// Row-wise ops without a reduction. Same bits as on the CPU.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx.cuh"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

dim3 grid_of(int64_t n_rows, int64_t n) {
  return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads), static_cast<unsigned>(n_rows));
}

template <DType kType>
__global__ void embed_kernel(EmbedArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (i >= a.n) return;
  const int32_t token = a.token[r];
  const bool known = token >= 0 && token < a.vocab;
  a.out[r * a.n + i] = known ? widen<kType>(a.table, static_cast<size_t>(token) * a.n + i) : 0.0f;
}

template <MapOp kOp>
__global__ void map_kernel(MapArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (i >= a.n) return;
  const float x = a.x[r * a.x_stride + i];
  const float y = kOp == MapOp::kSilu ? 0.0f : a.y[r * a.y_stride + i];
  float out = kOp == MapOp::kAdd ? __fadd_rn(x, y) : __fmul_rn(x, y);
  if (kOp >= MapOp::kSilu) {
    const float silu = __fdiv_rn(x, __fadd_rn(1.0f, exp_strict(__fsub_rn(0.0f, x))));
    out = kOp == MapOp::kSilu      ? silu
          : kOp == MapOp::kSiluAdd ? __fadd_rn(silu, y)
                                   : __fmul_rn(silu, y);
  }
  a.out[r * a.out_stride + i] = out;
}

__global__ void copy_rows_kernel(CopyRowsArgs a) {
  let_next_start();
  wait_for_previous();
  const int32_t column = blockIdx.x * kThreads + threadIdx.x;
  const int32_t i = blockIdx.y;
  if (column >= a.n) return;
  const int64_t from = a.from_row == nullptr ? i : a.from_row[i];
  const int64_t to = a.to_row == nullptr ? i : a.to_row[i];
  if (from < 0 || from >= a.from_rows || to < 0 || to >= a.to_rows) return;
  static_cast<int32_t*>(a.to)[to * a.to_stride + column] =
      static_cast<const int32_t*>(a.from)[from * a.from_stride + column];
}

}  // namespace

void embed(Stream& any, const EmbedArgs& a) {
  if (a.n_rows == 0) return;
  CudaStream& stream = of(any);
  with_type(a.dtype, [&]<DType kType>() {
    launch_early(stream, grid_of(a.n_rows, a.n), kThreads, 0, embed_kernel<kType>, a);
  });
}

void map(Stream& any, const MapArgs& a) {
  if (a.n_rows == 0 || a.n == 0) return;
  CudaStream& stream = of(any);
  const auto launch = [&]<MapOp kOp>() {
    launch_early(stream, grid_of(a.n_rows, a.n), kThreads, 0, map_kernel<kOp>, a);
  };
  switch (a.op) {
    case MapOp::kAdd:
      launch.template operator()<MapOp::kAdd>();
      break;
    case MapOp::kMul:
      launch.template operator()<MapOp::kMul>();
      break;
    case MapOp::kSilu:
      launch.template operator()<MapOp::kSilu>();
      break;
    case MapOp::kSiluAdd:
      launch.template operator()<MapOp::kSiluAdd>();
      break;
    case MapOp::kSiluMul:
      launch.template operator()<MapOp::kSiluMul>();
      break;
  }
}

void copy_rows(Stream& any, const CopyRowsArgs& a) {
  if (a.n_rows == 0 || a.n == 0) return;
  CudaStream& stream = of(any);
  launch_early(stream, grid_of(a.n_rows, a.n), kThreads, 0, copy_rows_kernel, a);
}

}  // namespace specd::kernels::cuda
