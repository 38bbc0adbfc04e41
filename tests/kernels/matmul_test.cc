#include "specd/kernels/matmul.h"

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

struct Shape {
  int32_t n_out;
  int32_t n_in;
};

// The order stated in the contract, as plain scalar code. `swap_at` >= 0 swaps the additions of k
// and k + 1, the smallest possible reordering.
std::vector<float> strict_oracle(const std::vector<float>& x, const std::vector<float>& w, Shape s,
                                 int32_t n_rows, int32_t segments, int32_t swap_at = -1) {
  std::vector<float> out(static_cast<size_t>(n_rows) * s.n_out);
  for (int32_t r = 0; r < n_rows; ++r) {
    for (int32_t j = 0; j < s.n_out; ++j) {
      float total = 0;
      for (int32_t g = 0; g < segments; ++g) {
        const int32_t begin = static_cast<int32_t>(int64_t{s.n_in} * g / segments);
        const int32_t end = static_cast<int32_t>(int64_t{s.n_in} * (g + 1) / segments);
        float sum = 0;
        for (int32_t i = begin; i < end; ++i) {
          const int32_t k = i == swap_at ? i + 1 : i == swap_at + 1 && swap_at >= 0 ? i - 1 : i;
          sum = std::fma(x[static_cast<size_t>(r) * s.n_in + k],
                         w[static_cast<size_t>(j) * s.n_in + k], sum);
        }
        total = g == 0 ? sum : total + sum;
      }
      out[static_cast<size_t>(r) * s.n_out + j] = total;
    }
  }
  return out;
}

class Weights {
 public:
  Weights(const Ops& ops, DType type, Shape s, uint32_t seed)
      : source_(narrowed(random_floats(static_cast<size_t>(s.n_out) * s.n_in, seed), type)),
        data_(aligned_bytes(ops.packed_bytes(type, s.n_out, s.n_in))),
        packed_{type, s.n_out, s.n_in, data_.get()} {
    std::memset(data_.get(), 0xff, ops.packed_bytes(type, s.n_out, s.n_in));
    WorkerPool pool(2);
    CpuStream stream(pool);
    // In two parts that meet inside a panel, from an odd address.
    const int32_t first = s.n_out / 2;
    const size_t row_bytes = dtype_bytes(type) * static_cast<size_t>(s.n_in);
    std::vector<char> unaligned(source_.bytes.size() + 1);
    std::memcpy(unaligned.data() + 1, source_.bytes.data(), source_.bytes.size());
    for (const auto& [begin, n] : {std::pair{0, first}, {first, s.n_out - first}}) {
      ops.pack(stream, {.packed = packed_,
                        .source = unaligned.data() + 1 + begin * row_bytes,
                        .n_rows = n,
                        .column_begin = begin});
    }
  }
  const PackedMatrix& packed() const { return packed_; }
  const std::vector<float>& widened() const { return source_.widened; }

 private:
  Narrowed source_;
  AlignedBytes data_;
  PackedMatrix packed_;
};

std::vector<float> run(const Ops& ops, const Weights& w, const float* x, int32_t n_rows,
                       int32_t segments, int threads) {
  WorkerPool pool(threads);
  CpuStream stream(pool);
  const size_t n = static_cast<size_t>(n_rows) * w.packed().n_out;
  std::vector<float> out(n + 16, kNan);
  ops.matmul(stream, {x, w.packed(), out.data(), n_rows, segments});
  for (size_t i = n; i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i])) << "wrote past the end";
  out.resize(n);
  return out;
}

const Shape kShapes[] = {{1, 1},    {3, 5},     {16, 16},    {17, 33},
                         {64, 257}, {100, 600}, {131, 1030}, {530, 300}};
const int32_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64, 65, 127, 257};
const DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class Matmul : public IsaTest {};
SPECD_FOR_EACH_ISA(Matmul);

TEST_P(Matmul, one_row_is_the_strict_chain_to_the_bit) {
  for (const Shape s : kShapes) {
    for (const DType type : kTypes) {
      const Weights w(ops(), type, s, 1);
      const std::vector<float> x = random_floats(s.n_in, 2);
      for (const int32_t segments : {1, 8}) {
        const std::vector<float> expected = strict_oracle(x, w.widened(), s, 1, segments);
        for (int threads = 1; threads <= 4; ++threads) {
          EXPECT_EQ(first_difference(run(ops(), w, x.data(), 1, segments, threads), expected), -1)
              << s.n_out << "x" << s.n_in << " " << dtype_name(type) << " segments " << segments
              << " threads " << threads;
        }
      }
    }
  }
}

TEST_P(Matmul, a_row_has_the_same_bits_whatever_stands_beside_it) {
  for (const Shape s : {Shape{17, 33}, Shape{131, 1030}, Shape{530, 300}}) {
    for (const DType type : kTypes) {
      const Weights w(ops(), type, s, 3);
      const std::vector<float> x = random_floats(size_t{257} * s.n_in, 4);
      for (const int32_t segments : {1, 8}) {
        std::vector<float> alone;
        for (int32_t r = 0; r < 257; ++r) {
          const std::vector<float> row =
              run(ops(), w, x.data() + static_cast<size_t>(r) * s.n_in, 1, segments, 1);
          alone.insert(alone.end(), row.begin(), row.end());
        }
        for (const int32_t n_rows : kRows) {
          const int threads = 1 + n_rows % 4;
          const std::vector<float> out = run(ops(), w, x.data(), n_rows, segments, threads);
          EXPECT_EQ(first_difference(out.data(), alone.data(), out.size()), -1)
              << n_rows << " rows " << dtype_name(type) << " segments " << segments;
        }
      }
    }
  }
}

TEST_P(Matmul, thread_count_never_changes_a_bit) {
  const Shape s{100, 600};
  const Weights w(ops(), DType::kBF16, s, 5);
  const std::vector<float> x = random_floats(size_t{257} * s.n_in, 6);
  for (const int32_t n_rows : {1, 2, 3, 8, 65, 257}) {
    const std::vector<float> one = run(ops(), w, x.data(), n_rows, 8, 1);
    for (int threads = 2; threads <= 4; ++threads) {
      EXPECT_EQ(first_difference(run(ops(), w, x.data(), n_rows, 8, threads), one), -1)
          << n_rows << " rows, " << threads << " threads";
    }
  }
}

TEST_P(Matmul, is_near_float64) {
  const Shape s{131, 1030};
  for (const DType type : kTypes) {
    const Weights w(ops(), type, s, 7);
    const std::vector<float> x = random_floats(size_t{9} * s.n_in, 8);
    for (const int32_t segments : {1, 8}) {
      const std::vector<float> out = run(ops(), w, x.data(), 9, segments, 2);
      for (int32_t r = 0; r < 9; ++r) {
        for (int32_t j = 0; j < s.n_out; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (int32_t k = 0; k < s.n_in; ++k) {
            const double product = double{x[static_cast<size_t>(r) * s.n_in + k]} *
                                   w.widened()[static_cast<size_t>(j) * s.n_in + k];
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(out[static_cast<size_t>(r) * s.n_out + j], sum, magnitude * 0x1p-20)
              << dtype_name(type) << " row " << r << " column " << j;
        }
      }
    }
  }
}

TEST_P(Matmul, one_swapped_addition_is_seen) {
  const Shape s{64, 257};
  const Weights w(ops(), DType::kF32, s, 9);
  const std::vector<float> x = random_floats(size_t{4} * s.n_in, 10);
  const std::vector<float> out = run(ops(), w, x.data(), 4, 1, 1);
  EXPECT_EQ(first_difference(out, strict_oracle(x, w.widened(), s, 4, 1)), -1);
  for (const int32_t swap_at : {2, 100, 255}) {
    EXPECT_NE(first_difference(out, strict_oracle(x, w.widened(), s, 4, 1, swap_at)), -1)
        << "swapping k " << swap_at << " and the next went unseen";
  }
  // Segments are part of the order too.
  EXPECT_NE(first_difference(out, strict_oracle(x, w.widened(), s, 4, 8)), -1);
}

// What each of several ranks computes of a row-parallel matrix, and what they add. With `swapped`, two
// neighboring segments change places before they are added.
std::vector<float> on_ranks(const Ops& ops, int32_t ranks, DType type, Shape s,
                            const std::vector<float>& x, int32_t n_rows, bool swapped = false) {
  const Narrowed source = narrowed(random_floats(static_cast<size_t>(s.n_out) * s.n_in, 1), type);
  const SplitRule rule = ops.split_rule(type);
  const int32_t part = s.n_in / ranks, segments = rule.segments / ranks;
  EXPECT_EQ(part % rule.grain, 0);
  WorkerPool pool(3);
  CpuStream stream(pool);
  const size_t n = static_cast<size_t>(n_rows) * s.n_out;
  std::vector<float> sums(n * rule.segments + 16, kNan);
  for (int32_t rank = ranks; rank-- > 0;) {
    const AlignedBytes data = aligned_bytes(ops.packed_bytes(type, s.n_out, part));
    const PackedMatrix packed{type, s.n_out, part, data.get()};
    ops.pack(stream, {.packed = packed,
                      .source = source.bytes.data() + dtype_bytes(type) * rank * part,
                      .source_stride = s.n_in,
                      .n_rows = s.n_out,
                      .column_begin = 0});
    std::vector<float> mine;
    for (int32_t r = 0; r < n_rows; ++r) {
      const auto at = x.begin() + int64_t{r} * s.n_in + rank * part;
      mine.insert(mine.end(), at, at + part);
    }
    ops.matmul(stream, {.x = mine.data(),
                        .weights = packed,
                        .out = sums.data() + n * rank * segments,
                        .n_rows = n_rows,
                        .k_segments = segments,
                        .apart = true});
  }
  for (size_t i = n * rule.segments; i < sums.size(); ++i) EXPECT_TRUE(std::isnan(sums[i]));
  if (swapped) std::swap_ranges(sums.begin() + n, sums.begin() + 2 * n, sums.begin() + 2 * n);
  std::vector<float> out(n, kNan);
  ops.add_segments(stream, {.parts = sums.data(),
                            .out = out.data(),
                            .n_parts = rule.segments,
                            .n_rows = n_rows,
                            .n = s.n_out});
  return out;
}

// However many ranks share the k of a matrix, and with an order of segments that matters.
void expect_ranks_equal_one(const Ops& ops, DType type) {
  for (const Shape s : {Shape{17, 48}, Shape{131, 1040}, Shape{60, 36}, Shape{530, 304}}) {
    const Weights w(ops, type, s, 1);
    for (const int32_t n_rows : s.n_out == 131 ? std::vector{1, 7} : std::vector{1, 2, 65}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(n_rows) * s.n_in, 2);
      const std::vector<float> one = run(ops, w, x.data(), n_rows, 8, 2);
      for (const int32_t ranks : {1, 2, 4, 8}) {
        if (s.n_in % (ranks * ops.split_rule(type).grain) != 0) continue;
        EXPECT_EQ(first_difference(on_ranks(ops, ranks, type, s, x, n_rows), one), -1)
            << ranks << " ranks, " << n_rows << " rows, " << dtype_name(type);
        if (one.size() < 100) continue;  // too few sums to differ for sure
        // A product of two bfloat16 has 16 bits, so a sum of only a few is exact in any order.
        if (&ops == &cpu_bf16_ops() && s.n_in < 100) continue;
        EXPECT_NE(first_difference(on_ranks(ops, ranks, type, s, x, n_rows, true), one), -1)
            << ranks << " ranks: swapped segments went unseen";
      }
    }
  }
}

TEST_P(Matmul, ranks_that_add_their_segments_in_order_have_the_bits_of_one) {
  for (const DType type : kTypes) expect_ranks_equal_one(ops(), type);
}

TEST_P(Matmul, no_rows_touch_nothing) {
  const Weights w(ops(), DType::kF16, {16, 16}, 11);
  EXPECT_TRUE(run(ops(), w, nullptr, 0, 1, 2).empty());
}

// numerics bf16: operations differ between processors, but are the same for every row.
class MatmulBf16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!bf16_available()) GTEST_SKIP() << "this processor has no AVX-512 BF16";
  }
};

TEST_F(MatmulBf16, bits_of_a_row_do_not_depend_on_rows_or_threads) {
  for (const Shape s : kShapes) {
    for (const int32_t segments : {1, 8}) {
      const Weights w(cpu_bf16_ops(), DType::kBF16, s, 1);
      const std::vector<float> x = random_floats(size_t{257} * s.n_in, 2);
      const std::vector<float> all = run(cpu_bf16_ops(), w, x.data(), 257, segments, 1);
      for (const int32_t n : kRows) {
        for (int threads = 1; threads <= 3; ++threads) {
          const int32_t first = 257 - n;
          const std::vector<float> some =
              run(cpu_bf16_ops(), w, x.data() + static_cast<size_t>(first) * s.n_in, n, segments,
                  threads);
          ASSERT_EQ(first_difference(some, {all.begin() + int64_t{first} * s.n_out, all.end()}), -1)
              << s.n_out << " x " << s.n_in << ", " << n << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST_F(MatmulBf16, ranks_that_add_their_segments_in_order_have_the_bits_of_one) {
  expect_ranks_equal_one(cpu_bf16_ops(), DType::kBF16);
}

TEST_F(MatmulBf16, is_near_float64_of_the_rounded_inputs) {
  for (const Shape s : kShapes) {
    const Weights w(cpu_bf16_ops(), DType::kBF16, s, 3);
    const std::vector<float> x = random_floats(size_t{9} * s.n_in, 4);
    const std::vector<float> rounded = narrowed(x, DType::kBF16).widened;
    for (const int32_t segments : {1, 8}) {
      const std::vector<float> out = run(cpu_bf16_ops(), w, x.data(), 9, segments, 2);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t r = i / static_cast<size_t>(s.n_out), j = i % static_cast<size_t>(s.n_out);
        double sum = 0, magnitude = 0;
        for (size_t k = 0; k < static_cast<size_t>(s.n_in); ++k) {
          const double product = double{rounded[r * static_cast<size_t>(s.n_in) + k]} *
                                 w.widened()[j * static_cast<size_t>(s.n_in) + k];
          sum += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(out[i], sum, 4e-6 * magnitude + 1e-30) << s.n_out << " x " << s.n_in;
      }
    }
  }
}

TEST_F(MatmulBf16, other_types_of_weights_keep_the_strict_order) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    const Shape s{131, 1030};
    const Weights w(cpu_bf16_ops(), type, s, 5);
    const std::vector<float> x = random_floats(size_t{5} * s.n_in, 6);
    EXPECT_EQ(first_difference(run(cpu_bf16_ops(), w, x.data(), 5, 8, 2),
                               strict_oracle(x, w.widened(), s, 5, 8)),
              -1);
  }
}

}  // namespace
}  // namespace specd::kernels
