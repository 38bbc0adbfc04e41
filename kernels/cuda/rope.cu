// The rotary table, the rotation with KV append, and KV compaction.
//
// Same bits as on the CPU, except for the payload of a NaN and for the table: here cos and sin are
// computed in float64 and rounded.
#include "kernels/cuda/attention.cuh"
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

// How a warp stores a row of `n` numbers, and where its scale goes, for kInt8.
template <KvDType kType>
struct RowWriter {
  void* to;
  float scale;  // of the layer, for kF8E4M3; else the row's, of which `inverse` makes codes
  float inverse = 0;

  // The whole warp calls it, synchronized since it wrote x.
  __device__ RowWriter(void* row, const float* x, int32_t n, int32_t lane, float layer_scale,
                       float* row_scale)
      : to(row), scale(layer_scale) {
    if constexpr (kType == KvDType::kInt8) {
      uint32_t largest = 0;  // as bits, which order magnitudes and put infinities and NaNs last
      for (int32_t d = lane; d < n; d += kWarp) {
        largest = max(largest, __float_as_uint(x[d]) & 0x7fffffffu);
      }
      for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      }
      const float m = __uint_as_float(largest);
      const bool is_finite = largest < 0x7f800000u;
      if (is_finite && m >= 0x1p-100f) inverse = __fdiv_rn(127.0f, m);
      scale = !is_finite ? __uint_as_float(0x7fc00000u) : inverse > 0 ? __fdiv_rn(m, 127.0f) : 0;
      if (lane == 0) *row_scale = scale;
    }
  }

  __device__ void put(size_t index, float x) const {
    if constexpr (kType == KvDType::kF32) narrow<DType::kF32>(to, index, x);
    if constexpr (kType == KvDType::kF16) narrow<DType::kF16>(to, index, x);
    if constexpr (kType == KvDType::kBF16) narrow<DType::kBF16>(to, index, x);
    if constexpr (kType == KvDType::kF8E4M3) {
      static_cast<uint8_t*>(to)[index] = narrow_f8(__fdiv_rn(x, scale));
    }
    if constexpr (kType == KvDType::kInt8) {
      // Adding and subtracting 1.5 * 2^23 rounds to nearest even; its lower bits are the integer.
      const float scaled = inverse > 0 ? __fmul_rn(x, inverse) : 0;
      static_cast<int8_t*>(to)[index] = static_cast<int8_t>(
          __float_as_uint(__fadd_rn(scaled, 0x1.8p23f)) - __float_as_uint(0x1.8p23f));
    }
  }
};

// grid: (rows, groups of 8 heads of q, k or v); a warp per head.
template <KvDType kType>
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
  if (!is_v) {
    const float* cos_sin = a.cos_sin + r * dim;
    for (int32_t i = lane; i < half; i += kWarp) {
      const float p = x[i], q = x[i + half];
      const float c = cos_sin[i], s = cos_sin[i + half];
      x[i] = __fmaf_rn(p, c, __fsub_rn(-0.0f, __fmul_rn(q, s)));
      x[i + half] = __fmaf_rn(q, c, __fmul_rn(p, s));
    }
    if (head < a.n_heads || !is_kept) return;
    __syncwarp();
  }
  const auto page = static_cast<size_t>(a.slot[r] / kPageTokens);
  const auto offset = static_cast<size_t>(a.slot[r] % kPageTokens);
  const auto g = static_cast<size_t>(is_v ? head - a.n_heads - groups : head - a.n_heads);
  float* scales = is_v ? a.kv.v_row_scale : a.kv.k_row_scale;
  if constexpr (kType == KvDType::kInt8) {
    scales += page * a.kv.scale_stride + g * kPageTokens + offset;
  }
  const RowWriter<kType> row(is_v ? a.kv.v : a.kv.k, x, dim, lane,
                             is_v ? a.kv.v_scale : a.kv.k_scale, scales);
  const size_t base = page * a.kv.page_stride + g * dim * kPageTokens;
  for (int32_t d = lane; d < dim; d += kWarp) {
    row.put(base + (is_v ? offset * dim + d : d * kPageTokens + offset), x[d]);
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
    if (a.kv.dtype == KvDType::kInt8 && threadIdx.x < 2) {
      float* scales = (threadIdx.x == 0 ? a.kv.k_row_scale : a.kv.v_row_scale);
      scales[row_scale_at(a.kv, a.to[i], blockIdx.x)] =
          scales[row_scale_at(a.kv, a.from[i], blockIdx.x)];
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
  with_type(a.kv.dtype, [&]<KvDType kType>() {
    launch_early(stream, grid, kWarps * kWarp, 0, rope_append_kernel<kType>, a);
  });
}

void kv_move(Stream& any, const KvMoveArgs& a) {
  if (a.n == 0) return;
  CudaStream& stream = of(any);
  const auto blocks = static_cast<unsigned>(a.kv.n_kv_heads);
  const size_t bytes = kv_dtype_bytes(a.kv.dtype);
  if (bytes == 4) {
    kv_move_kernel<uint32_t><<<blocks, 128, 0, stream.handle>>>(a);
  } else if (bytes == 2) {
    kv_move_kernel<uint16_t><<<blocks, 128, 0, stream.handle>>>(a);
  } else {
    kv_move_kernel<uint8_t><<<blocks, 128, 0, stream.handle>>>(a);
  }
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
