#include "specd/kernels/codes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "kernels/cpu/isa.h"
#include "tests/kernels/code_cases.h"
#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

// A matrix of codes, in the form of a file and packed.
class CodeMatrix : public OrderOfCase {
 public:
  CodeMatrix(const Ops& ops, const CodeCase& kind, int32_t out, int32_t in, uint32_t seed)
      : CodeMatrix(ops, kind, out, in, seed, std::mt19937(seed)) {}
  CodeMatrix(const Ops& ops, const CodeCase& kind, int32_t out, int32_t in, uint32_t seed,
             std::mt19937 engine)
      : OrderOfCase(kind, in, engine), n_out(out), n_in(in) {
    const auto number = [&](int32_t end) {
      return static_cast<int32_t>(engine() % static_cast<uint32_t>(end));
    };
    codes.resize(static_cast<size_t>(n_out) * n_in);
    for (uint8_t& code : codes) code = random_code(kind, engine);
    scale = random_floats(static_cast<size_t>(n_out) * order.n_groups, seed + 1, 0.01f);
    zero.assign(scale.size(), static_cast<uint8_t>(1 << (kind.bits - 1)));
    if (kind.has_zeros) {
      for (uint8_t& each : zero) each = static_cast<uint8_t>(number(1 << kind.bits));
    }
    pack(ops);
  }

  // The contract, one number after the other, with sums of integers in 64 bits.
  std::vector<float> strict(const std::vector<float>& x, int32_t n_rows) const {
    std::vector<float> out(static_cast<size_t>(n_rows) * n_out);
    for (int32_t r = 0; r < n_rows; ++r) {
      for (int32_t j = 0; j < n_out; ++j) {
        float total = 0;
        for (const Run& run : runs) {
          total = order.x_bits == 32 ? with_chain(x, r, j, run, total)
                                     : with_integers(x, r, j, run, total);
        }
        out[static_cast<size_t>(r) * n_out + j] = total;
      }
    }
    return out;
  }

  // In two parts that meet inside a panel.
  void pack(const Ops& ops) {
    const size_t bytes = ops.packed_code_bytes(order, n_out);
    data_ = aligned_bytes(bytes);
    std::memset(data_.get(), 0xff, bytes);
    packed = {.n_out = n_out, .n_in = n_in, .data = data_.get(), .order = &order};
    WorkerPool pool(2);
    CpuStream stream(pool);
    const int32_t half = n_out / 2;
    for (const auto& [begin, n] : {std::pair{0, half}, {half, n_out - half}}) {
      if (n == 0) continue;
      const size_t first = static_cast<size_t>(begin);
      ops.pack(stream, {.packed = packed,
                        .source = codes.data() + first * n_in,
                        .n_rows = n,
                        .column_begin = begin,
                        .scale = scale.data() + first * order.n_groups,
                        .zero = order.has_zeros ? zero.data() + first * order.n_groups : nullptr});
    }
  }

  double weight(int32_t j, int32_t k) const {
    const size_t of_weight =
        static_cast<size_t>(j) * order.n_groups + group_of[static_cast<size_t>(k)];
    if (order.x_bits == 32) {
      return widen_f8(codes[static_cast<size_t>(j) * n_in + k]) * double{scale[of_weight]};
    }
    return (codes[static_cast<size_t>(j) * n_in + k] - static_cast<double>(zero[of_weight])) *
           double{scale[of_weight]};
  }

  const int32_t n_out, n_in;
  std::vector<uint8_t> codes, zero;
  std::vector<float> scale;
  PackedMatrix packed;

 private:
  float x_at(const std::vector<float>& x, int32_t r, int32_t place) const {
    const int32_t k = source[static_cast<size_t>(place)];
    return k < 0 ? 0.0f : x[static_cast<size_t>(r) * n_in + k];
  }

  // `total` and what a run adds to it.
  float with_integers(const std::vector<float>& x, int32_t r, int32_t j, const Run& run,
                      float total) const {
    const float limit = order.x_bits == 8 ? 127.0f : 127.0f * 256.0f;
    float m = 0;
    bool is_finite = true;
    for (int32_t p = run.begin; p < run.begin + run.n; ++p) {
      const float value = x_at(x, r, p);
      is_finite = is_finite && std::isfinite(value);
      m = std::max(m, std::fabs(value));
    }
    const bool is_zero = order.x_scale == 0 && m < 0x1p-100f;
    const size_t of_weight = static_cast<size_t>(j) * order.n_groups + run.group;
    int64_t sum = 0;
    for (int32_t p = run.begin; p < run.begin + run.n; ++p) {
      const int32_t k = source[static_cast<size_t>(p)];
      if (k < 0 || !is_finite || is_zero) continue;
      const float value = x_at(x, r, p);
      const int64_t q = order.x_scale > 0
                            ? std::lrint(std::clamp(value / order.x_scale, -128.0f, 127.0f))
                            : std::lrint(value * (limit / m));
      sum += q * (codes[static_cast<size_t>(j) * n_in + k] - zero[of_weight]);
    }
    const float own = is_zero ? 0.0f : order.x_scale > 0 ? order.x_scale : m / limit;
    const float x_scale = is_finite ? own : kNan;
    return std::fma(static_cast<float>(sum), x_scale * scale[of_weight], total);
  }
  float with_chain(const std::vector<float>& x, int32_t r, int32_t j, const Run& run,
                   float total) const {
    float sum = 0;
    for (int32_t p = run.begin; p < run.begin + run.n; ++p) {
      const int32_t k = source[static_cast<size_t>(p)];
      const uint8_t code = k < 0 ? 0 : codes[static_cast<size_t>(j) * n_in + k];
      sum = std::fma(x_at(x, r, p), widen_f8(code) / 256, sum);
    }
    const size_t of_weight = static_cast<size_t>(j) * order.n_groups + run.group;
    return std::fma(sum, scale[of_weight] * 256, total);
  }

  AlignedBytes data_;
};

std::vector<float> run(const Ops& ops, const CodeMatrix& w, const float* x, int32_t n_rows,
                       int threads, const PackedMatrix* next = nullptr) {
  WorkerPool pool(threads);
  CpuStream stream(pool);
  const size_t n = static_cast<size_t>(n_rows) * w.n_out;
  std::vector<float> out(n + 16, kNan);
  const AlignedBytes scratch = aligned_bytes(matmul_scratch_bytes(w.packed, n_rows));
  ops.matmul(stream, {.x = x,
                      .weights = w.packed,
                      .out = out.data(),
                      .n_rows = n_rows,
                      .scratch = scratch.get(),
                      .next = next});
  for (size_t i = n; i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i])) << "wrote past the end";
  out.resize(n);
  return out;
}

constexpr std::pair<int32_t, int32_t> kCodeShapes[] = {
    {1, 1}, {3, 9}, {16, 64}, {17, 100}, {100, 600}, {70, 2500}, {530, 300}, {300, 256}, {40, 512}};

class Codes : public IsaTest {};
SPECD_FOR_EACH_ISA(Codes);

TEST_P(Codes, a_row_has_the_bits_of_the_contract) {
  for (const CodeCase& kind : kCodeCases) {
    for (const auto& [n_out, n_in] : kCodeShapes) {
      const CodeMatrix w(ops(), kind, n_out, n_in, 1);
      const std::vector<float> x = random_floats(static_cast<size_t>(3) * n_in, 2);
      EXPECT_EQ(first_difference(run(ops(), w, x.data(), 3, 2), w.strict(x, 3)), -1)
          << kind.name << " " << n_out << "x" << n_in;
    }
  }
}

constexpr CodeCase kShallow = {.name = "w4a16", .bits = 4, .x_bits = 16};

TEST_P(Codes, a_row_has_the_same_bits_whatever_stands_beside_it) {
  for (const CodeCase& kind : kCodeCases) {
    const CodeMatrix w(ops(), kind, 131, 1030, 3);
    const std::vector<float> x = random_floats(size_t{129} * w.n_in, 4);
    std::vector<float> alone;
    for (int32_t r = 0; r < 129; ++r) {
      const std::vector<float> row =
          run(ops(), w, x.data() + static_cast<size_t>(r) * w.n_in, 1, 1);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    // What follows is fetched ahead: the same, one of fewer columns than threads, one of no codes, another kind.
    const CodeMatrix narrow(ops(), kind, 1, 40, 5), other(ops(), kShallow, 300, 64, 6);
    const PackedMatrix plain;
    const PackedMatrix* const next[] = {&w.packed, &narrow.packed, &plain, &other.packed};
    for (const int32_t n_rows : {2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 48, 49, 64, 129}) {
      const std::vector<float> out =
          run(ops(), w, x.data(), n_rows, 1 + n_rows % 4, next[n_rows % 4]);
      EXPECT_EQ(first_difference(out.data(), alone.data(), out.size()), -1)
          << kind.name << ", " << n_rows << " rows";
    }
  }
}

TEST_P(Codes, are_near_float64) {
  for (const CodeCase& kind : kCodeCases) {
    const CodeMatrix w(ops(), kind, 40, 1030, 5);
    const std::vector<float> x = random_floats(static_cast<size_t>(w.n_in), 6);
    const std::vector<float> out = run(ops(), w, x.data(), 1, 1);
    float largest = 0;
    for (const float each : x) largest = std::max(largest, std::fabs(each));
    // Half a step of x for each k, or half a unit in the last place of a sum for each.
    const double step = kind.x_bits == 32  ? largest * w.n_in * 0x1p-24
                        : kind.x_scale > 0 ? double{kind.x_scale}
                                           : largest / (kind.x_bits == 8 ? 127.0 : 32512.0);
    for (int32_t j = 0; j < w.n_out; ++j) {
      double sum = 0, weights = 0;
      for (int32_t k = 0; k < w.n_in; ++k) {
        sum += double{x[static_cast<size_t>(k)]} * w.weight(j, k);
        weights += std::fabs(w.weight(j, k));
      }
      ASSERT_NEAR(out[static_cast<size_t>(j)], sum, weights * step * 0.51) << kind.name;
    }
  }
}

TEST_P(Codes, the_largest_codes_and_values_do_not_overflow) {
  for (const CodeCase& kind : kCodeCases) {
    CodeMatrix w(ops(), kind, 16, kRun8Max, 7);
    if (kind.x_bits != 32) {
      std::fill(w.codes.begin(), w.codes.end(), static_cast<uint8_t>((1 << kind.bits) - 1));
      if (kind.has_zeros) std::fill(w.zero.begin(), w.zero.end(), uint8_t{0});
      w.pack(ops());
    }
    for (const float sign : {1.0f, -1.0f}) {
      // Beyond what one scale for x can express.
      const std::vector<float> x(static_cast<size_t>(w.n_in), sign * 30.0f);
      EXPECT_EQ(first_difference(run(ops(), w, x.data(), 1, 1), w.strict(x, 1)), -1) << kind.name;
    }
  }
}

TEST_P(Codes, rows_of_zeros_huge_values_and_nans_are_defined_and_stay_alone) {
  for (const CodeCase& kind : kCodeCases) {
    const CodeMatrix w(ops(), kind, 33, 300, 9);
    const size_t n_in = static_cast<size_t>(w.n_in), n_out = static_cast<size_t>(w.n_out);
    constexpr float kInf = std::numeric_limits<float>::infinity();
    std::vector<float> x = random_floats(7 * n_in, 10);
    std::fill_n(x.begin() + static_cast<ptrdiff_t>(n_in), n_in, 0.0f);
    x[2 * n_in + 17] = 1e30f;
    x[3 * n_in + 1] = kNan;
    x[4 * n_in + 299] = -kInf;
    std::fill_n(x.begin() + static_cast<ptrdiff_t>(5 * n_in), n_in, 1e-44f);
    const std::vector<float> out = run(ops(), w, x.data(), 7, 2);
    const std::vector<float> expected = w.strict(x, 7);
    for (size_t r = 0; r < 7; ++r) {
      for (size_t j = 0; j < n_out; ++j) {
        const float value = out[r * n_out + j];
        if (r == 3 || (r == 4 && kind.x_bits != 32)) {
          EXPECT_TRUE(std::isnan(value)) << kind.name << " row " << r;
        } else if (r == 4) {
          EXPECT_FALSE(std::isfinite(value)) << kind.name << " row " << r;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(value),
                    std::bit_cast<uint32_t>(expected[r * n_out + j]))
              << kind.name << " row " << r;
        }
      }
    }
    EXPECT_EQ(out[n_out], 0.0f);
  }
}

TEST_P(Codes, x_in_the_middle_of_two_steps_is_rounded_to_even) {
  for (const CodeCase& kind : kCodeCases) {
    if (kind.x_bits == 32) continue;
    const CodeMatrix w(ops(), kind, 40, 1030, 15);
    // A third of x is the largest, whose quotient is the limit, so a step is one.
    const float step = kind.x_scale > 0 ? kind.x_scale : 1.0f,
                limit = kind.x_bits == 8 ? 127.0f : 32512.0f;
    std::vector<float> x(static_cast<size_t>(w.n_in)), away = x;
    for (size_t k = 0; k < x.size(); ++k) {
      const float half = static_cast<float>(k % 100) + 0.5f;
      x[k] = k % 3 == 0 ? limit * step : (k % 2 == 0 ? half : -half) * step;
      away[k] = k % 3 == 0 ? x[k] : std::nextafter(x[k], 2 * x[k]);
    }
    EXPECT_EQ(first_difference(run(ops(), w, x.data(), 1, 1), w.strict(x, 1)), -1) << kind.name;
    EXPECT_NE(first_difference(w.strict(away, 1), w.strict(x, 1)), -1)
        << kind.name << ": rounding away from zero would pass as well";
  }
}

TEST_P(Codes, a_code_more_or_another_zero_is_seen) {
  for (const CodeCase& kind : kCodeCases) {
    CodeMatrix w(ops(), kind, 20, 130, 11);
    const std::vector<float> x = random_floats(static_cast<size_t>(w.n_in), 12);
    const std::vector<float> out = run(ops(), w, x.data(), 1, 1);
    w.codes[5 * 130 + 77] ^= 1;
    EXPECT_NE(first_difference(out, w.strict(x, 1)), -1) << kind.name;
    w.codes[5 * 130 + 77] ^= 1;
    if (kind.x_bits == 32) continue;
    ++w.zero[3];
    EXPECT_NE(first_difference(out, w.strict(x, 1)), -1) << kind.name;
  }
}

TEST_P(Codes, another_order_of_the_additions_is_seen) {
  for (const CodeCase& kind : kCodeCases) {
    if (kind.x_bits != 32) continue;
    CodeMatrix w(ops(), kind, 20, 130, 15);
    const std::vector<float> x = random_floats(static_cast<size_t>(w.n_in), 16);
    const std::vector<float> out = run(ops(), w, x.data(), 1, 1);
    ASSERT_EQ(first_difference(out, w.strict(x, 1)), -1) << kind.name;
    for (const auto& each : w.runs) {
      const size_t second = static_cast<size_t>(each.begin) + 1;
      std::swap(w.source[second], w.source[second + 1]);
    }
    EXPECT_NE(first_difference(out, w.strict(x, 1)), -1) << kind.name;
  }
}

TEST_P(Codes, every_code_of_float8_has_its_value) {
  CodeMatrix w(ops(), {.name = "fp8", .x_bits = 32}, 37, 256, 17);
  const size_t n_in = static_cast<size_t>(w.n_in), n_out = static_cast<size_t>(w.n_out);
  for (size_t j = 0; j < n_out; ++j) {
    for (size_t k = 0; k < n_in; ++k) {
      const uint8_t code = static_cast<uint8_t>(k + j);
      w.codes[j * n_in + k] = has_value(code) ? code : 0;
    }
    w.scale[j] = 1.0f;
  }
  w.pack(ops());
  std::vector<float> x(n_in * n_in);
  for (size_t k = 0; k < n_in; ++k) x[k * n_in + k] = 1.0f;
  const std::vector<float> out = run(ops(), w, x.data(), w.n_in, 2);
  for (size_t k = 0; k < n_in; ++k) {
    for (size_t j = 0; j < n_out; ++j) {
      ASSERT_EQ(out[k * n_out + j], widen_f8(w.codes[j * n_in + k])) << k << " " << j;
    }
  }
}

#if defined(__x86_64__)

using Part = void(const MatmulArgs&, int part, int parts);

std::vector<float> multiplied(Part& round, Part& multiply, const CodeMatrix& w,
                              const std::vector<float>& x, int32_t n_rows, int parts = 1) {
  std::vector<float> out(static_cast<size_t>(n_rows) * w.n_out, kNan);
  const AlignedBytes scratch = aligned_bytes(matmul_scratch_bytes(w.packed, n_rows));
  const MatmulArgs args{.x = x.data(),
                        .weights = w.packed,
                        .out = out.data(),
                        .n_rows = n_rows,
                        .scratch = scratch.get()};
  round(args, 0, 1);
  for (int part = 0; part < parts; ++part) multiply(args, part, parts);
  return out;
}

// With and without products and sums in one instruction.
TEST(CodesVnni, have_the_bits_of_avx512_without_it) {
  if (!vnni_available()) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  const Ops& ops = cpu_ops(Isa::kAvx512);
  for (const CodeCase& kind : kCodeCases) {
    if (kind.x_bits == 32) continue;
    for (const auto& [n_out, n_in] : kCodeShapes) {
      const CodeMatrix w(ops, kind, n_out, n_in, 13);
      const std::vector<float> x = random_floats(size_t{64} * w.n_in, 14);
      for (const int32_t n_rows : {1, 2, 3, 5, 8, 16, 33, 64}) {
        const IsaOps& isa = isa_ops(Isa::kAvx512);
        EXPECT_EQ(first_difference(
                      multiplied(*isa.round_rows, avx512_vnni::multiply_integers, w, x, n_rows),
                      multiplied(*isa.round_rows, *isa.multiply_integers, w, x, n_rows)),
                  -1)
            << kind.name << " " << n_out << "x" << n_in << ", " << n_rows << " rows";
      }
    }
  }
}

// The kinds whose k are in another order, in groups that tiles take.
constexpr CodeCase kShuffledForTiles[] = {
    {.name = "w8a16 shuffled", .x_bits = 16, .group = 128, .shuffled = true},
    {.name = "w4a16 shuffled",
     .bits = 4,
     .x_bits = 16,
     .group = 64,
     .has_zeros = true,
     .shuffled = true}};
std::vector<CodeCase> integer_cases() {
  std::vector<CodeCase> cases;
  std::ranges::copy_if(kCodeCases, std::back_inserter(cases),
                       [](const CodeCase& kind) { return kind.x_bits != 32; });
  std::ranges::copy(kShuffledForTiles, std::back_inserter(cases));
  return cases;
}

TEST(CodesAmx, take_runs_of_64_and_enough_rows) {
  std::vector<std::string> taken;
  for (const CodeCase& kind : integer_cases()) {
    const CodeMatrix w(cpu_ops(Isa::kScalar), kind, 17, 1024, 19);
    EXPECT_FALSE(avx512_amx::takes(w.order, 2));
    EXPECT_EQ(avx512_amx::takes(w.order, 3), avx512_amx::takes(w.order, 12) && kind.x_bits == 8);
    if (avx512_amx::takes(w.order, 12)) taken.push_back(kind.name);
  }
  EXPECT_THAT(taken,
              testing::ElementsAre("w8a8", "w8a8 with zeros", "w8a8 with one scale for x", "w4a8",
                                   "w4a8 with zeros", "w8a16 in groups of 64",
                                   "w4a16 in groups of 128", "w4a16 with zeros",
                                   "w4a16 of one group", "w8a16 shuffled", "w4a16 shuffled"));
}

// Tiles of sixteen rows, with rows that are rounded in every way, and as the ops choose them.
TEST(CodesAmx, have_the_bits_of_avx512_without_it) {
  if (!amx_available()) GTEST_SKIP() << "this processor or operating system has no AMX";
  const Ops& ops = cpu_ops(Isa::kAvx512);
  const IsaOps& isa = isa_ops(Isa::kAvx512);
  const CodeMatrix other(ops, kShallow, 300, 64, 6);
  for (const CodeCase& kind : integer_cases()) {
    Part& round = kind.x_bits == 16 ? avx512::round_rows_to_bytes : *isa.round_rows;
    const float largest = kind.x_bits == 16 ? 32512.0f : 127.0f;
    for (const auto& [n_out, n_in] :
         {std::pair{300, 256}, {17, 64}, {40, 60}, {33, 192}, {131, 1024}}) {
      const CodeMatrix w(ops, kind, n_out, n_in, 19);
      if (!avx512_amx::takes(w.order, 16)) continue;
      const size_t row = static_cast<size_t>(n_in);
      std::vector<float> x = random_floats(129 * row, 20);
      x[row] = kNan;
      std::fill_n(x.begin() + static_cast<ptrdiff_t>(2 * row), row, 0.0f);
      x[3 * row + 7] = std::numeric_limits<float>::infinity();
      std::fill_n(x.begin() + static_cast<ptrdiff_t>(4 * row), row, 0x1p-120f);
      // In the middle of two steps, where runs have the largest value.
      for (size_t k = 0; k < row; ++k)
        x[5 * row + k] = k % 16 == 0 ? largest : static_cast<float>(k % 32) + 0.5f;
      x[row * 11 + 5] = 1e30f;
      for (const int32_t n_rows : {3, 5, 8, 12, 15, 16, 17, 33, 64, 129}) {
        if (!avx512_amx::takes(w.order, n_rows)) continue;
        const std::vector<float> expected =
            multiplied(*isa.round_rows, *isa.multiply_integers, w, x, n_rows);
        for (const int parts : {1, 3}) {
          EXPECT_EQ(
              first_difference(
                  multiplied(round, avx512_amx::multiply_integers, w, x, n_rows, parts), expected),
              -1)
              << kind.name << " " << n_out << "x" << n_in << ", " << n_rows << " rows";
        }
        const std::vector<float> chosen =
            run(ops, w, x.data(), n_rows, 1 + n_rows % 4, n_rows % 2 ? &other.packed : &w.packed);
        EXPECT_EQ(first_difference(chosen, expected), -1) << kind.name << ", " << n_rows << " rows";
      }
    }
  }
}

TEST(CodesAmx, the_largest_codes_and_values_do_not_overflow) {
  if (!amx_available()) GTEST_SKIP() << "this processor or operating system has no AMX";
  const Ops& ops = cpu_ops(Isa::kAvx512);
  constexpr int32_t kRows = 12;
  for (const CodeCase& kind : integer_cases()) {
    CodeMatrix w(ops, kind, 16, kRun8Max, 7);
    if (!avx512_amx::takes(w.order, kRows)) continue;
    std::fill(w.codes.begin(), w.codes.end(), static_cast<uint8_t>((1 << kind.bits) - 1));
    if (kind.has_zeros) std::fill(w.zero.begin(), w.zero.end(), uint8_t{0});
    w.pack(ops);
    // The largest high byte, and in the last rows behind the first value of each run the largest low one.
    std::vector<float> x(static_cast<size_t>(kRows) * static_cast<size_t>(w.n_in), 32512.0f);
    const auto part = static_cast<ptrdiff_t>(x.size() / 3);
    std::fill(x.begin() + part, x.end(), -32512.0f);
    for (size_t i = x.size() / 3 * 2; i < x.size(); ++i) {
      if (i % 64 != 0) x[i] = 32511.0f;
    }
    EXPECT_EQ(first_difference(run(ops, w, x.data(), kRows, 2), w.strict(x, kRows)), -1)
        << kind.name;
  }
}

#endif

}  // namespace
}  // namespace specd::kernels
