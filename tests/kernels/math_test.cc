// The lane functions that the ops are built from.
#include "kernels/cpu/isa.h"
#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

std::vector<float> apply(Isa isa, LaneArgs::Function function, const std::vector<float>& in) {
  std::vector<float> out(in.size(), kNan);
  isa_ops(isa).lanes(
      {function, DType::kF32, in.data(), out.data(), static_cast<int32_t>(in.size())}, 0, 1);
  return out;
}

// |value - want| in units of the last place of `want` as float32.
double ulps(float value, double want) {
  const float near = static_cast<float>(want);
  const double step = std::max<double>(
      std::nextafter(std::fabs(near), std::numeric_limits<float>::infinity()) - std::fabs(near),
      std::numeric_limits<float>::denorm_min());
  return std::fabs(value - want) / step;
}

class Math : public IsaTest {};
SPECD_FOR_EACH_ISA(Math);

TEST_P(Math, exp_is_within_two_ulps_and_has_the_scalar_bits) {
  std::vector<float> x;
  for (float v = -105.0f; v < 89.5f; v += 0.00037f) x.push_back(v);
  for (float v = -1.0f; v < 1.0f; v += 0.0000113f) x.push_back(v);
  for (float v = 1e-38f; v < 1.0f; v *= 1.37f) x.push_back(v), x.push_back(-v);
  x.resize(x.size() / 16 * 16);
  const std::vector<float> y = apply(GetParam(), LaneArgs::Function::kExp, x);
  EXPECT_EQ(first_difference(y, apply(Isa::kScalar, LaneArgs::Function::kExp, x)), -1);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(double{x[i]});
    if (want > std::numeric_limits<float>::max()) {
      ASSERT_TRUE(std::isinf(y[i])) << x[i];
    } else {
      worst = std::max(worst, ulps(y[i], want));
    }
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_P(Math, exp_of_the_extremes) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-inf, -1e38f, -104.0f, 0.0f, -0.0f, inf, 1e38f, kNan,
                                -inf, -1e38f, -104.0f, 0.0f, -0.0f, inf, 1e38f, -kNan};
  const std::vector<float> y = apply(GetParam(), LaneArgs::Function::kExp, x);
  for (const size_t i : {0, 1, 2}) EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), 0u);
  EXPECT_EQ(y[3], 1.0f);
  EXPECT_EQ(y[4], 1.0f);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], inf);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_TRUE(std::isnan(y[15]));
}

TEST_P(Math, log_is_within_two_ulps_and_has_the_scalar_bits) {
  std::vector<float> x;
  for (float v = 1.2e-38f; v < 3e38f; v *= 1.0003f) x.push_back(v);
  for (float v = 0.4f; v < 2.5f; v += 0.0000071f) x.push_back(v);
  for (float e = 6e-8f; e < 0.4f; e *= 1.01f) x.push_back(1 + e), x.push_back(1 - e);
  while (x.size() % 16 != 0) x.push_back(1.0f);
  const std::vector<float> y = apply(GetParam(), LaneArgs::Function::kLog, x);
  EXPECT_EQ(first_difference(y, apply(Isa::kScalar, LaneArgs::Function::kLog, x)), -1);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::log(double{x[i]})));
  EXPECT_LE(worst, 2.0);
}

TEST_P(Math, every_narrow_value_widens_exactly) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> in(65536);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
    std::vector<float> out(in.size());
    std::vector<float> scalar(in.size());
    const auto widen_all = [&](Isa isa, std::vector<float>* to) {
      isa_ops(isa).lanes({LaneArgs::Function::kWiden, type, in.data(), to->data(), 65536}, 0, 1);
    };
    widen_all(GetParam(), &out);
    widen_all(Isa::kScalar, &scalar);
    EXPECT_EQ(first_difference(out, scalar), -1) << dtype_name(type);
    for (size_t i = 0; i < in.size(); ++i) {
      const float want = widen(in[i], type);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(out[i]));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(want)) << i;
      }
    }
  }
}

TEST_P(Math, narrowing_rounds_to_nearest_even) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    // Every value of the type, the ties between neighbors, and their float32 neighbors.
    std::vector<float> in;
    const uint16_t top = type == DType::kF16 ? 0x7bff : 0x7f7f;
    for (uint16_t h = 0; h < top; ++h) {
      const float a = widen(h, type);
      const float tie =
          static_cast<float>((double{a} + widen(static_cast<uint16_t>(h + 1), type)) / 2);
      for (const float x : {a, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)}) {
        in.push_back(x);
        in.push_back(-x);
      }
    }
    const float inf = std::numeric_limits<float>::infinity();
    for (const float x : {inf, kNan, std::bit_cast<float>(0x7f812345u),  // a signaling NaN
                          std::bit_cast<float>(0xffabcdefu), 65519.99f, 65520.0f, 1e6f, 3.4e38f}) {
      in.push_back(x);
      in.push_back(-x);
    }
    while (in.size() % 16 != 0) in.push_back(0.0f);
    std::vector<uint16_t> out(in.size());
    std::vector<uint16_t> scalar(in.size());
    const int32_t n = static_cast<int32_t>(in.size());
    isa_ops(GetParam()).lanes({LaneArgs::Function::kNarrow, type, in.data(), out.data(), n}, 0, 1);
    isa_ops(Isa::kScalar)
        .lanes({LaneArgs::Function::kNarrow, type, in.data(), scalar.data(), n}, 0, 1);
    EXPECT_EQ(out, scalar) << dtype_name(type);
    const float limit = widen(top, type);
    for (size_t i = 0; i < in.size(); ++i) {
      if (std::isnan(in[i])) {
        EXPECT_TRUE(std::isnan(widen(out[i], type)));
      } else if (std::fabs(in[i]) <= limit) {
        ASSERT_EQ(out[i], narrow(in[i], type)) << in[i] << " " << dtype_name(type);
      } else if (std::isinf(in[i]) || (type == DType::kF16 && std::fabs(in[i]) >= 65520.0f)) {
        EXPECT_EQ(widen(out[i], type), std::copysign(inf, in[i]));
      }
    }
  }
}

}  // namespace
}  // namespace specd::kernels
