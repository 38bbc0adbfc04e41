#include "specd/kernels/rmsnorm.h"

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

// Updates x and returns the result. `swap` exchanges two additions of partial sum 0.
std::vector<float> strict_oracle(std::vector<float>* x, const std::vector<float>& delta,
                                 const std::vector<float>& weight, float eps, bool swap = false) {
  const size_t n = weight.size();
  std::vector<float> out(x->size());
  for (size_t r = 0; r * n < x->size(); ++r) {
    float* row = x->data() + r * n;
    for (size_t i = 0; i < n && !delta.empty(); ++i) row[i] = row[i] + delta[r * n + i];
    float sums[16] = {};
    for (size_t i = 0; i < n; ++i) {
      const size_t k = !swap || i % 16 != 0 || i < 32 || i >= 64 ? i : (i == 32 ? i + 16 : i - 16);
      sums[i % 16] = std::fma(row[k], row[k], sums[i % 16]);
    }
    for (int stride = 8; stride > 0; stride /= 2) {
      for (int i = 0; i < stride; ++i) sums[i] = sums[i] + sums[i + stride];
    }
    const float root = std::sqrt(sums[0] / static_cast<float>(n) + eps);
    for (size_t i = 0; i < n; ++i) out[r * n + i] = row[i] / root * weight[i];
  }
  return out;
}

class RmsNorm : public IsaTest {
 protected:
  std::vector<float> run(std::vector<float>* x, const std::vector<float>& delta,
                         const std::vector<float>& weight, int threads) {
    WorkerPool pool(threads);
    CpuStream stream(pool);
    std::vector<float> out(x->size(), kNan);
    const int32_t n = static_cast<int32_t>(weight.size());
    ops().rmsnorm(stream, {x->data(), delta.empty() ? nullptr : delta.data(), weight.data(),
                           out.data(), static_cast<int32_t>(x->size()) / n, n, 1e-5f});
    return out;
  }
};
SPECD_FOR_EACH_ISA(RmsNorm);

TEST_P(RmsNorm, is_the_strict_order_to_the_bit_and_near_float64) {
  for (const size_t n : {1, 7, 16, 64, 100, 2048}) {
    for (const size_t rows : {1, 2, 5, 33}) {
      for (const bool with_delta : {false, true}) {
        const std::vector<float> start = random_floats(rows * n, 1);
        const std::vector<float> delta =
            with_delta ? random_floats(rows * n, 2) : std::vector<float>();
        const std::vector<float> weight = random_floats(n, 3);
        std::vector<float> x_expected = start;
        const std::vector<float> expected = strict_oracle(&x_expected, delta, weight, 1e-5f);
        for (int threads = 1; threads <= 4; ++threads) {
          std::vector<float> x = start;
          const std::vector<float> out = run(&x, delta, weight, threads);
          EXPECT_EQ(first_difference(x, x_expected), -1);
          EXPECT_EQ(first_difference(out, expected), -1) << n << " rows " << rows;
        }
        for (size_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (size_t i = 0; i < n; ++i)
            sum += double{x_expected[r * n + i]} * x_expected[r * n + i];
          const double root = std::sqrt(sum / static_cast<double>(n) + 1e-5);
          for (size_t i = 0; i < n; ++i) {
            const double want = x_expected[r * n + i] / root * weight[i];
            EXPECT_NEAR(expected[r * n + i], want, std::fabs(want) * 1e-6);
          }
        }
      }
    }
  }
}

TEST_P(RmsNorm, one_swapped_addition_is_seen) {
  const std::vector<float> start = random_floats(512 * 64, 4);
  const std::vector<float> weight = random_floats(64, 5);
  std::vector<float> x = start;
  const std::vector<float> out = run(&x, {}, weight, 1);
  std::vector<float> same = start;
  EXPECT_EQ(first_difference(out, strict_oracle(&same, {}, weight, 1e-5f)), -1);
  EXPECT_NE(first_difference(out, strict_oracle(&same, {}, weight, 1e-5f, true)), -1);
}

TEST_P(RmsNorm, without_an_output_only_adds) {
  std::vector<float> x = random_floats(40, 6);
  const std::vector<float> delta = random_floats(40, 7);
  std::vector<float> expected = x;
  for (size_t i = 0; i < 40; ++i) expected[i] = expected[i] + delta[i];
  WorkerPool pool(1);
  CpuStream stream(pool);
  ops().rmsnorm(stream, {x.data(), delta.data(), nullptr, nullptr, 2, 20, 1e-5f});
  EXPECT_EQ(first_difference(x, expected), -1);
}

TEST_P(RmsNorm, of_heads_is_that_of_every_head_of_q_and_k_alone) {
  for (const int32_t dim : {16, 48, 128}) {
    const int32_t rows = 5, heads = 6, groups = 2, width = (heads + 2 * groups) * dim;
    const std::vector<float> start = random_floats(static_cast<size_t>(rows) * width, 8);
    const std::vector<float> q = random_floats(dim, 9), k = random_floats(dim, 10);
    std::vector<float> expected = start;
    for (int32_t i = 0; i < rows * (heads + 2 * groups); ++i) {
      const int32_t head = i % (heads + 2 * groups);
      if (head >= heads + groups) continue;
      const auto begin = expected.begin() + static_cast<int64_t>(i) * dim;
      std::vector<float> x(begin, begin + dim);
      const std::vector<float> out = strict_oracle(&x, {}, head < heads ? q : k, 1e-6f);
      std::copy(out.begin(), out.end(), begin);
    }
    for (int threads = 1; threads <= 3; ++threads) {
      std::vector<float> qkv = start;
      WorkerPool pool(threads);
      CpuStream stream(pool);
      ops().head_norm(stream, {qkv.data(), q.data(), k.data(), rows, heads, groups, dim, 1e-6f});
      EXPECT_EQ(first_difference(qkv, expected), -1) << dim;
    }
  }
}

}  // namespace
}  // namespace specd::kernels
