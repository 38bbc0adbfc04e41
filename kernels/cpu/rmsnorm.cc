// Residual add and RMSNorm. Lane i of the running sums is partial sum i.
#include "specd/kernels/rmsnorm.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

namespace specd::kernels::SPECD_ISA {

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
    if (a.out == nullptr) continue;
    F32x16 sums = set1(0.0f);
    for (int32_t i = 0; i < a.n; i += 16) {
      // Lanes past the end add 0 * 0 to a sum that is never negative: no bit changes.
      const F32x16 v = load_first(x + i, a.n - i);
      sums = fma(v, v, sums);
    }
    const float mean = tree_sum(sums) / static_cast<float>(a.n);
    const F32x16 root = set1(__builtin_sqrtf(mean + a.eps));
    float* out = a.out + r * a.n;
    for (int32_t i = 0; i < a.n; i += 16) {
      const int n = a.n - i;
      store_first(out + i, mul(div(load_first(x + i, n), root), load_first(a.weight + i, n)), n);
    }
  }
}

}  // namespace specd::kernels::SPECD_ISA
