#include "specd/kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

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
      ops().embed(stream, {unaligned.data() + 1, type, token.data(), out.data(), 5, n, 11});
      for (size_t r = 0; r < 5; ++r) {
        EXPECT_EQ(first_difference(&out[r * n], &table.widened[static_cast<size_t>(token[r]) * n],
                                   static_cast<size_t>(n)),
                  -1);
      }
      EXPECT_TRUE(std::isnan(out.back()));
    }
  }
}

TEST_P(Elementwise, embed_gives_zeros_for_tokens_that_are_not_in_the_table) {
  const std::vector<float> table(3 * 20, 1.0f);
  const std::vector<int32_t> token = {-1, 2, 3, INT32_MIN, INT32_MAX};
  std::vector<float> out(5 * 20, kNan);
  WorkerPool pool(2);
  CpuStream stream(pool);
  ops().embed(stream, {table.data(), DType::kF32, token.data(), out.data(), 5, 20, 3});
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i / 20 == 1 ? 1.0f : 0.0f) << i;
}

// silu(gate) * up with both in one row, as the MLP uses it.
MapArgs silu_mul(const float* gate_up, float* out, int32_t rows, int32_t n) {
  return {MapOp::kSiluMul, gate_up, gate_up + n, out, rows, n, 2 * n, 2 * n, n};
}

TEST_P(Elementwise, silu_mul_is_near_float64_and_has_the_scalar_bits) {
  for (const int32_t n : {1, 16, 37, 1024}) {
    for (const int32_t rows : {1, 3, 8}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(rows) * 2 * n, 1, 20.0f);
      std::vector<float> scalar(static_cast<size_t>(rows) * n, kNan);
      WorkerPool one(1);
      CpuStream alone(one);
      cpu_ops(Isa::kScalar).map(alone, silu_mul(x.data(), scalar.data(), rows, n));
      for (int threads = 1; threads <= 4; ++threads) {
        std::vector<float> out(static_cast<size_t>(rows) * n, kNan);
        WorkerPool pool(threads);
        CpuStream stream(pool);
        ops().map(stream, silu_mul(x.data(), out.data(), rows, n));
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
  ops().map(stream, silu_mul(x.data(), out.data(), 1, 5));
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
    ops().map(stream, add_bias(x.data(), bias.data(), 5, n));
    EXPECT_EQ(first_difference(x, expected), -1);
  }
}

TEST_P(Elementwise, every_map_is_its_formula_over_rows_of_any_stride) {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const std::vector<std::pair<MapOp, std::function<double(double, double)>>> maps = {
      {MapOp::kAdd, [](double x, double y) { return x + y; }},
      {MapOp::kMul, [](double x, double y) { return x * y; }},
      {MapOp::kSilu, [&](double x, double) { return silu(x); }},
      {MapOp::kSiluAdd, [&](double x, double y) { return silu(x) + y; }},
      {MapOp::kSiluMul, [&](double x, double y) { return silu(x) * y; }}};
  constexpr int32_t kRows = 4, kN = 37;
  const std::vector<float> x = random_floats(kRows * 40, 6), y = random_floats(kRows * 50, 7);
  for (const auto& [op, formula] : maps) {
    std::vector<float> out(kRows * 60, kNan);
    WorkerPool pool(3);
    CpuStream stream(pool);
    const float* no_y = op == MapOp::kSilu ? nullptr : y.data();
    ops().map(stream, {op, x.data(), no_y, out.data(), kRows, kN, 40, 50, 60});
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t r = i / 60, c = i % 60;
      if (c >= kN) {
        EXPECT_TRUE(std::isnan(out[i])) << "outside of the row";
      } else {
        const double want = formula(x[r * 40 + c], y[r * 50 + c]);
        EXPECT_NEAR(out[i], want, std::fabs(want) * 1e-6 + 1e-6) << static_cast<int>(op);
      }
    }
  }
}

TEST_P(Elementwise, copied_rows_go_where_the_lists_say_and_rows_out_of_range_nowhere) {
  const std::vector<float> from = random_floats(6 * 30, 3);
  const std::vector<int32_t> from_row = {5, 5, 0, -1, 6, 2, 1}, to_row = {3, 0, 1, 2, 4, -1, 5};
  constexpr float kOld = -7;
  for (const bool is_gathered : {true, false}) {
    for (const bool is_scattered : {true, false}) {
      std::vector<float> to(5 * 40, kOld), expected = to;
      const CopyRowsArgs args{.from = from.data(),
                              .to = to.data(),
                              .from_row = is_gathered ? from_row.data() : nullptr,
                              .to_row = is_scattered ? to_row.data() : nullptr,
                              .n_rows = 7,
                              .n = 21,
                              .from_rows = 6,
                              .to_rows = 5,
                              .from_stride = 30,
                              .to_stride = 40};
      for (int32_t i = 0; i < 7; ++i) {
        const int32_t f = is_gathered ? from_row[static_cast<size_t>(i)] : i;
        const int32_t t = is_scattered ? to_row[static_cast<size_t>(i)] : i;
        if (f < 0 || f >= 6 || t < 0 || t >= 5) continue;
        std::copy_n(from.begin() + f * 30, 21, expected.begin() + t * 40);
      }
      WorkerPool pool(3);
      CpuStream stream(pool);
      ops().copy_rows(stream, args);
      EXPECT_EQ(to, expected);
    }
  }
}

}  // namespace
}  // namespace specd::kernels
