// Rounding by hand; ballast_test.cc compares with quantize.py.
#include "host/bench/weight_format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace specd::host {
namespace {

std::vector<int> codes_of(const WeightRounding& rounding, const std::vector<float>& weights,
                          float scale) {
  std::vector<uint8_t> codes(weights.size());
  EXPECT_EQ(rounding.round(weights, codes.data()), scale);
  return {codes.begin(), codes.end()};
}

TEST(WeightFormat, int8_takes_the_largest_to_127_and_ties_to_even) {
  const WeightRounding rounding{.format = WeightFormat::kInt8, .own = TensorType::kF32};
  EXPECT_EQ(codes_of(rounding, {254, -254, 1, 3, 5, -1, -3, 0}, 2),
            (std::vector<int>{127, 129, 0, 2, 2, 0, 254, 0}));
}

TEST(WeightFormat, float8_takes_the_largest_to_448_down_to_its_subnormals) {
  const WeightRounding rounding{.format = WeightFormat::kFloat8, .own = TensorType::kF32};
  EXPECT_EQ(codes_of(rounding, {448, -1, 0x1p-6f, 0x1p-9f, 0x1p-10f, 0x1.8p-9f, 17, 19}, 1),
            (std::vector<int>{0x7e, 0xb8, 0x08, 0x01, 0x00, 0x02, 0x58, 0x5a}));
}

TEST(WeightFormat, int4_cuts_off_one_large_weight_where_the_others_gain) {
  const WeightRounding rounding{
      .format = WeightFormat::kInt4, .own = TensorType::kF32, .group = 64};
  std::vector<float> weights(64);
  for (size_t i = 0; i < 64; ++i) weights[i] = static_cast<float>(i % 15) - 7;
  const std::vector<int> exact = codes_of(rounding, weights, 1);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(exact[i], static_cast<int>(i % 15) + 1);
  for (float& each : weights) each = each > 0 ? 1.0f : -1.0f;
  weights[5] = -8;  // 7 / 8 of the scale that it asks for: code -8 is exact
  EXPECT_EQ(codes_of(rounding, weights, 1)[5], 0);
}

TEST(WeightFormat, what_a_normal_number_cannot_scale_is_zero_by_a_scale_of_one) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kFloat8}) {
    const WeightRounding rounding{.format = format, .own = TensorType::kF32, .group = 64};
    for (const float value : {0.0f, 1e-39f}) {
      const std::vector<int> zeros(64, rounding.zero_code());
      EXPECT_EQ(codes_of(rounding, std::vector<float>(64, value), 1), zeros)
          << weight_format_name(format);
    }
  }
}

TEST(WeightFormat, scales_of_bf16_models_are_bf16_before_anything_is_rounded_by_them) {
  const WeightRounding rounding{.format = WeightFormat::kInt8, .own = TensorType::kBF16};
  const float asked = 1.0f / 127, kept = 0x1.02p-7f;  // 1 / 127 is 0x1.0204p-7
  EXPECT_NE(asked, kept);
  EXPECT_EQ(codes_of(rounding, {1, 0.5f}, kept), (std::vector<int>{127, 64}));
}

TEST(WeightFormat, bytes_are_those_of_the_tensors) {
  const WeightRounding int4{.format = WeightFormat::kInt4, .own = TensorType::kBF16, .group = 64};
  EXPECT_EQ(int4.bytes(10, 128), 10u * 64 + 10 * 2 * 2 + 16);
  const WeightRounding int8{.format = WeightFormat::kInt8, .own = TensorType::kF16};
  EXPECT_EQ(int8.bytes(10, 128), 10u * 128 + 10 * 4);
  const WeightRounding own{.own = TensorType::kF32};
  EXPECT_EQ(own.bytes(10, 128), 10u * 128 * 4);
}

TEST(WeightFormat, groups_are_128_where_all_widths_allow_it) {
  ModelConfig config;
  config.hidden_size = 256;
  config.head_dim = 64;
  config.n_heads = 4;
  config.intermediate_size = 100;
  const auto group = [&] {
    return WeightRounding::make(WeightFormat::kInt4, TensorType::kBF16, config, "c").value().group;
  };
  EXPECT_EQ(group(), 128);
  config.n_heads = 3;
  EXPECT_EQ(group(), 64);
  config.head_dim = 80;
  const auto refused =
      WeightRounding::make(WeightFormat::kInt4, TensorType::kBF16, config, "c").status();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.message(),
            "c: num_attention_heads * head_dim: found 240, expected a multiple of 64 with weights "
            "in int4");
  config.intermediate_size = 70'000;
  const auto wide =
      WeightRounding::make(WeightFormat::kInt8, TensorType::kBF16, config, "c").status();
  EXPECT_EQ(wide.message(),
            "c: key 'intermediate_size': found 70000, expected at most 65528 with "
            "weights in int8");
}

}  // namespace
}  // namespace specd::host
