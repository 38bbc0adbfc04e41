#include "specd/kernels/elementwise.h"

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

class Elementwise : public IsaTest {};
SPECD_FOR_EACH_ISA(Elementwise);

TEST_P(Elementwise, embed_widens_the_rows_asked_for) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t n : {1, 16, 37, 64}) {
      const Narrowed table = narrowed(random_floats(size_t{11} * n, 1), type);
      std::vector<char> unaligned(table.bytes.size() + 1);
      std::memcpy(unaligned.data() + 1, table.bytes.data(), table.bytes.size());
      const std::vector<int32_t> token = {10, 0, 3, 3, 7};
      std::vector<float> out(5 * static_cast<size_t>(n) + 1, kNan);
      WorkerPool pool(3);
      CpuStream stream(pool);
      ops().embed(stream, {unaligned.data() + 1, type, token.data(), out.data(), 5, n});
      for (size_t r = 0; r < 5; ++r) {
        EXPECT_EQ(first_difference(&out[r * n], &table.widened[static_cast<size_t>(token[r]) * n],
                                   static_cast<size_t>(n)),
                  -1);
      }
      EXPECT_TRUE(std::isnan(out.back()));
    }
  }
}

TEST_P(Elementwise, silu_mul_is_near_float64_and_has_the_scalar_bits) {
  for (const int32_t n : {1, 16, 37, 1024}) {
    for (const int32_t rows : {1, 3, 8}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(rows) * 2 * n, 1, 20.0f);
      std::vector<float> scalar(static_cast<size_t>(rows) * n, kNan);
      WorkerPool one(1);
      CpuStream alone(one);
      cpu_ops(Isa::kScalar).silu_mul(alone, {x.data(), scalar.data(), rows, n});
      for (int threads = 1; threads <= 4; ++threads) {
        std::vector<float> out(static_cast<size_t>(rows) * n, kNan);
        WorkerPool pool(threads);
        CpuStream stream(pool);
        ops().silu_mul(stream, {x.data(), out.data(), rows, n});
        EXPECT_EQ(first_difference(out, scalar), -1);
      }
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t i = 0; i < n; ++i) {
          const double g = x[static_cast<size_t>(r) * 2 * n + i];
          const double want = g / (1 + std::exp(-g)) * x[static_cast<size_t>(r) * 2 * n + n + i];
          EXPECT_NEAR(scalar[static_cast<size_t>(r) * n + i], want, std::fabs(want) * 1e-6 + 1e-35);
        }
      }
    }
  }
}

TEST_P(Elementwise, silu_of_the_extremes_is_no_nan) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-200.0f, -1e30f, 0.0f, 1e30f, inf, 1, 1, 1, 1, 1};
  std::vector<float> out(5, kNan);
  WorkerPool pool(1);
  CpuStream stream(pool);
  ops().silu_mul(stream, {x.data(), out.data(), 1, 5});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(out[3], 1e30f);
  EXPECT_EQ(out[4], inf);
}

TEST_P(Elementwise, a_bias_joins_every_row) {
  for (const int32_t n : {1, 16, 37, 100}) {
    std::vector<float> x = random_floats(size_t{5} * n, 4), expected = x;
    const std::vector<float> bias = random_floats(n, 5);
    for (size_t i = 0; i < x.size(); ++i) expected[i] = expected[i] + bias[i % bias.size()];
    WorkerPool pool(3);
    CpuStream stream(pool);
    ops().add_bias(stream, {x.data(), bias.data(), 5, n});
    EXPECT_EQ(first_difference(x, expected), -1);
  }
}

TEST_P(Elementwise, gather_copies_rows) {
  const std::vector<float> x = random_floats(6 * 21, 3);
  const std::vector<int32_t> row = {5, 5, 0, 2};
  std::vector<float> out(4 * 21, kNan);
  WorkerPool pool(3);
  CpuStream stream(pool);
  ops().gather_rows(stream, {x.data(), row.data(), out.data(), 4, 21});
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(first_difference(&out[r * 21], &x[static_cast<size_t>(row[r]) * 21], 21), -1);
  }
}

}  // namespace
}  // namespace specd::kernels
