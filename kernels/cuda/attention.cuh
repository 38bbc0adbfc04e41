// What the two implementations of attention share: where K and V are, and how parts are joined.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/math.cuh"

namespace specd::kernels::cuda {

constexpr int kPart = 128;  // positions
constexpr int kDimMax = 256;

// Floats stored per part and head: m, l, acc[head_dim].
__host__ __device__ constexpr int32_t part_floats(int32_t head_dim) { return head_dim + 2; }

// The first element of a position's K (d = 0) or V.
__device__ inline size_t k_at(const KvLayer& kv, int32_t slot, int32_t g) {
  return slot / kPageTokens * kv.page_stride + static_cast<size_t>(g) * kv.head_dim * kPageTokens +
         slot % kPageTokens;
}
__device__ inline size_t v_at(const KvLayer& kv, int32_t slot, int32_t g) {
  return slot / kPageTokens * kv.page_stride +
         (static_cast<size_t>(g) * kPageTokens + slot % kPageTokens) * kv.head_dim;
}

// Of an int8 cache, where the scales of a position's K and V are.
__device__ inline size_t row_scale_at(const KvLayer& kv, int32_t slot, int32_t g) {
  return slot / kPageTokens * kv.scale_stride +
         static_cast<size_t>(g * kPageTokens + slot % kPageTokens);
}

// The first position that a row sees.
__device__ inline int32_t window_begin(const AttentionArgs& a, int64_t row) {
  return a.window > 0 ? max(a.position[row] - a.window + 1, 0) : 0;
}

// None for position -1.
__device__ inline int32_t parts_of(int32_t position) { return (position + kPart) / kPart; }

// What a part with maximum part_m does to the sums so far: both are multiplied before they are added.
struct JoinFactors {
  float m, before, part;
};
__device__ inline JoinFactors factors_of(float m, float part_m) {
  const float m_new = m > part_m ? m : part_m;
  return {m_new, exp_strict(__fsub_rn(m, m_new)), exp_strict(__fsub_rn(part_m, m_new))};
}
__device__ inline float joined(float before, float part, const JoinFactors& factors) {
  return __fmaf_rn(before, factors.before, __fmul_rn(part, factors.part));
}

// The rows [first, first + n) alone.
inline AttentionArgs rows_of(AttentionArgs a, int32_t first, int32_t n) {
  a.qkv += int64_t{first} * (a.n_heads + 2 * a.kv.n_kv_heads) * a.kv.head_dim;
  a.out += int64_t{first} * a.n_heads * a.kv.head_dim;
  a.position += first, a.span += first, a.table += first, a.tail_begin += first;
  a.n_rows = n;
  return a;
}

// Adds the parts of each row, [row][head][part]{m, l, acc}, in order.
void launch_join(CudaStream& stream, const AttentionArgs& a, int32_t parts_max,
                 const float* scratch);

// The implementation for a cache of bfloat16, with tensor cores; attention_tiles.cu. False: not for this
// cache or device.
bool attention_tiles(CudaStream& stream, const AttentionArgs& a);
cudaError_t open_attention_tiles(int32_t shared_bytes_max);

}  // namespace specd::kernels::cuda
