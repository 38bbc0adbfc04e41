// Words and bits of what is published.
#include "core/model/weight_summary.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/core/model/quantization_rig.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

WeightSummary of(const std::string& folder) {
  const auto summary = weight_summary(folder, load_model_config(folder).value());
  EXPECT_TRUE(summary.ok()) << folder << summary.status().to_string();
  return summary.ok() ? summary.value() : WeightSummary();
}

TEST(WeightSummary, every_golden_has_words_and_bits_of_its_tensors) {
  // The matrices have 64 or 96 inputs, few outputs, and F32 scales unless BF16 or F16: bits besides those of
  // codes weigh more than in larger models.
  const std::map<std::string, std::pair<std::string, double>> goldens = {
      {"auto_round_awq", {"W4A16 g32", 4 + (16 + 4) / 32.0}},
      {"auto_round_gptq", {"W4A16 g32", 5.125}},
      {"awq", {"W4A16 g32", 4 + (16 + 4) / 32.0}},
      {"awq_channel", {"W4A16", 4.2917}},
      {"ct_fp8_block", {"FP8 128x128", 8.0033}},
      {"ct_fp8_dynamic_llama", {"FP8", 8.2333}},
      {"ct_fp8_dynamic_qwen3", {"FP8", 8.4667}},
      {"ct_fp8_static", {"FP8", 8.0073}},
      {"ct_fp8_weights", {"FP8", 8.0036}},
      {"ct_int4", {"W4A16 g32", 4.5292}},
      {"ct_int4_actorder", {"W4A16 g32", 5.0292}},
      {"ct_int4_channel", {"W4A16", 4.2625}},
      {"ct_int4_asymmetric", {"W4A16 g32", 4.6542}},
      {"ct_int8_dynamic_llama", {"W8A8 int8", 8.2333}},
      {"ct_int8_dynamic_qwen3", {"W8A8 int8", 8.4667}},
      {"ct_int8_groups", {"W8A16 g16", 9.0292}},
      {"ct_int8_groups_asymmetric", {"W8A16 g32", 8.7792}},
      {"ct_int8_packed", {"W8A16", 8.2625}},
      {"ct_int8_weights", {"W8A16 int8", 8.2333}},
      {"ct_int8_static", {"W8A8 int8", 8.0073}},
      {"ct_mixed", {"FP8, mixed", 7.525}},
      {"fbgemm_fp8", {"FP8, mixed", 9.9667}},
      {"fp8_block_llama", {"FP8 32x32", 8.0312}},
      {"fp8_block_qwen3", {"FP8 128x128", 8.0033}},
      {"fp8_dynamic", {"FP8", 8.0073}},
      {"fp8_static", {"FP8", 8.0146}},
      {"gptq_actorder", {"W4A16 g32", 5.125}},
      {"gptq_asymmetric", {"W4A16 g32", 5.125}},
      {"gptq_int8", {"W8A16", 8.85}},
      {"gptq_llama", {"W4A16 g32", 5.125}},
      {"gptq_overrides", {"W4A16 g32, mixed", 7.55}},
      {"gptq_qwen3", {"W4A16 g32", 4.625}},
      {"gptq_v2", {"W4A16 g32", 5.125}},
      {"modelopt_fp8", {"FP8", 8.0146}},
      {"modelopt_fp8_block", {"FP8 128x128", 8.002}},
      {"modelopt_fp8_channel", {"FP8", 8.4667}},
  };
  std::map<std::string, int> seen;
  for (const auto& entry : fs::directory_iterator(kQuantized)) {
    const std::string name = entry.path().filename();
    if (name == "ct_int8_asymmetric_llama") continue;  // refused
    const auto expected = find_golden(goldens, name);
    ASSERT_NE(expected, goldens.end()) << name;
    ++seen[expected->first];
    const WeightSummary found = of(entry.path());
    EXPECT_EQ(found.format, expected->second.first) << name;
    EXPECT_NEAR(found.bits, expected->second.second, 5e-5) << name;
  }
  expect_both_families(seen, goldens);
}

TEST(WeightSummary, weights_that_are_not_quantized_have_the_bits_of_their_type) {
  const WeightSummary found = of(std::string(SPECD_TEST_ZOO) + "/pico-draft");
  EXPECT_EQ(found.format, "bf16");
  EXPECT_EQ(found.bits, 16);
  EXPECT_EQ(found.text(), "bf16, 16.00 bits a weight");
}

TEST(WeightSummary, a_folder_without_its_tensors_is_refused) {
  const std::string zoo = SPECD_TEST_ZOO;
  EXPECT_EQ(weight_summary(zoo + "/pico-draft", load_model_config(zoo + "/pico-target").value())
                .status()
                .code(),
            Code::kDataLoss);
}

}  // namespace
}  // namespace specd
