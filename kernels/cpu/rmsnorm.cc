// Residual add and RMSNorm. Lane i of the running sums is partial sum i.
#include "specd/kernels/rmsnorm.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

namespace specd::kernels::SPECD_ISA {
namespace {

// out may be x.
void normalize(const float* x, const float* weight, float* out, int32_t size, float eps) {
  F32x16 sums = set1(0.0f);
  for (int32_t i = 0; i < size; i += 16) {
    // Lanes past the end add 0 * 0 to a sum that is never negative, which changes no bit.
    const F32x16 v = load_first(x + i, size - i);
    sums = fma(v, v, sums);
  }
  const float mean = tree_sum(sums) / static_cast<float>(size);
  const F32x16 root = set1(__builtin_sqrtf(mean + eps));
  for (int32_t i = 0; i < size; i += 16) {
    const int n = size - i;
    store_first(out + i, mul(div(load_first(x + i, n), root), load_first(weight + i, n)), n);
  }
}

}  // namespace

void rmsnorm(const RmsNormArgs& a, int part, int parts) {
  const Share share = share_of(a.n_rows, part, parts);
  for (int64_t r = share.begin; r < share.end; ++r) {
    float* x = a.x + r * a.n;
    if (a.delta != nullptr) {
      const float* delta = a.delta + r * a.n;
      for (int32_t i = 0; i < a.n; i += 16) {
        const int n = a.n - i;
        store_first(x + i, add(load_first(x + i, n), load_first(delta + i, n)), n);
      }
    }
    if (a.out != nullptr) normalize(x, a.weight, a.out + r * a.n, a.n, a.eps);
  }
}

void head_norm(const HeadNormArgs& a, int part, int parts) {
  const int64_t normed = a.n_heads + a.n_kv_heads, heads = normed + a.n_kv_heads;
  const Share share = share_of(a.n_rows * normed, part, parts);
  for (int64_t unit = share.begin; unit < share.end; ++unit) {
    const int64_t head = unit % normed;
    float* x = a.qkv + (unit / normed * heads + head) * a.head_dim;
    normalize(x, head < a.n_heads ? a.q_weight : a.k_weight, x, a.head_dim, a.eps);
  }
}

}  // namespace specd::kernels::SPECD_ISA
