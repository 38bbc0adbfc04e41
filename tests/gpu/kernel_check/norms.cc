// Norms of rows and of heads.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

void check_norms(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const int32_t n : {16, 384, 4096, 5000}) {
    const int32_t rows = 37;
    const std::vector<float> x = floats(static_cast<size_t>(rows) * n, 3), delta = floats(x.size()),
                             weight = floats(static_cast<size_t>(n));
    const auto run = [&](int32_t first, int32_t count, std::vector<float>* x_after) {
      const std::vector<float> part(x.begin() + first * n, x.begin() + (first + count) * n);
      const std::vector<float> part_delta(delta.begin() + first * n,
                                          delta.begin() + (first + count) * n);
      RmsNormArgs a{.x = gpu.in(part),
                    .delta = gpu.in(part_delta),
                    .weight = gpu.in(weight),
                    .out = gpu.poisoned(part.size()),
                    .n_rows = count,
                    .n = n,
                    .eps = 1e-5f};
      gpu.ops().rmsnorm(gpu.stream(), a);
      if (x_after != nullptr) *x_after = gpu.out(a.x, part.size());
      return gpu.out(a.out, part.size());
    };
    std::vector<float> after;
    const std::vector<float> all = run(0, rows, &after);
    std::vector<double> expected(x.size()), allowed(x.size());
    bool added = true;
    for (int32_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int32_t i = 0; i < n; ++i) {
        const float v = x[static_cast<size_t>(r * n + i)] + delta[static_cast<size_t>(r * n + i)];
        added = added && v == after[static_cast<size_t>(r * n + i)];
        sum += double{v} * v;
      }
      for (int32_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(r * n + i);
        expected[at] =
            double{after[at]} / std::sqrt(sum / n + 1e-5) * weight[static_cast<size_t>(i)];
        allowed[at] = 1e-6 * std::fabs(expected[at]) + 1e-30;
      }
    }
    std::string problem = added ? beyond(all, expected, allowed) : "the residual is not x + delta";
    for (const int32_t r : {0, 5, rows - 1}) {
      if (!problem.empty()) break;
      const std::vector<float> one = run(r, 1, nullptr);
      problem = difference(one, {all.begin() + r * n, all.begin() + (r + 1) * n});
    }
    rig.report.check("rmsnorm, n " + std::to_string(n), problem.empty(), problem);
    gpu.free_all();
  }
  const int32_t rows = 37, heads = 6, groups = 2;
  for (const int32_t dim : {16, 128, 256}) {
    const int32_t width = (heads + 2 * groups) * dim;
    const std::vector<float> qkv = floats(static_cast<size_t>(rows) * width, 3);
    const std::vector<float> q = floats(static_cast<size_t>(dim)), k = floats(q.size());
    const auto run = [&](int32_t first, int32_t count) {
      const HeadNormArgs a{.qkv = gpu.in(std::vector<float>(qkv.begin() + first * width,
                                                            qkv.begin() + (first + count) * width)),
                           .q_weight = gpu.in(q),
                           .k_weight = gpu.in(k),
                           .n_rows = count,
                           .n_heads = heads,
                           .n_kv_heads = groups,
                           .head_dim = dim,
                           .eps = 1e-6f};
      gpu.ops().head_norm(gpu.stream(), a);
      return gpu.out(a.qkv, static_cast<size_t>(count) * width);
    };
    const std::vector<float> all = run(0, rows);
    std::vector<double> expected(qkv.begin(), qkv.end()), allowed(qkv.size(), 1e-30);
    for (size_t head = 0; head * dim < qkv.size(); ++head) {
      const size_t in_row = head % (heads + 2 * groups);
      if (in_row >= heads + groups) continue;
      double sum = 0;
      for (size_t i = head * dim; i < (head + 1) * dim; ++i) sum += double{qkv[i]} * qkv[i];
      for (size_t i = head * dim; i < (head + 1) * dim; ++i) {
        expected[i] *= (in_row < heads ? q : k)[i % dim] / std::sqrt(sum / dim + 1e-6);
        allowed[i] = 1e-6 * std::fabs(expected[i]) + 1e-30;
      }
    }
    std::string problem = beyond(all, expected, allowed);
    if (problem.empty()) {
      problem = difference(run(5, 1), {all.begin() + 5 * width, all.begin() + 6 * width});
    }
    rig.report.check("head_norm, heads of " + std::to_string(dim), problem.empty(), problem);
    gpu.free_all();
  }
}

}  // namespace specd::kernels
