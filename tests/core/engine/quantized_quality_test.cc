// What quantizing costs on a text that neither the model nor this test was made for: bits per byte of
// the zoo's target in each format of the recipe, as specd computes them. sdk/zoo/README.md has the
// figures of a longer text by another implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/sanitizer.h"
#include "core/text/tokenizer.h"
#include "tests/core/model/forward_rig.h"
#include "tests/core/quantized_zoo.h"

namespace specd {
namespace {

constexpr size_t kWindow = 512, kWindows = 6;  // tokens

// Of the windows, without the first token of each.
double bits_per_byte(const std::string& folder, const std::vector<int32_t>& tokens,
                     const Tokenizer& tokenizer) {
  double bits = 0;
  size_t bytes = 0;
  ForwardRig rig(folder, "", 2, false, kernels::KvDType::kF32, kWindow);
  for (size_t begin = 0; begin < kWindow * kWindows; begin += kWindow) {
    const std::vector<int32_t> window(tokens.begin() + static_cast<int64_t>(begin),
                                      tokens.begin() + static_cast<int64_t>(begin + kWindow));
    rig.add_span(window, 0);
    const std::vector<std::vector<float>> logits = rig.run();
    for (size_t i = 1; i < kWindow; ++i) {
      const std::vector<float>& row = logits[i - 1];
      double sum = 0;
      for (const float each : row) sum += std::exp(double{each});
      bits += (std::log(sum) - double{row[static_cast<size_t>(window[i])]}) / std::log(2.0);
      bytes += tokenizer.token_bytes(window[i]).size();
    }
  }
  return bits / static_cast<double>(bytes);
}

TEST(QuantizedQuality, bits_per_byte_of_a_text_are_close_to_those_of_bf16) {
  if (SPECD_HAS_SANITIZER) GTEST_SKIP() << "slow, and computed without one";
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is missing";
  char pattern[] = "/tmp/specd-quality-XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  const std::string folder = pattern, target = std::string(SPECD_TEST_ZOO) + "/pico-target";
  const auto tokenizer = Tokenizer::load(target + "/tokenizer.json").value();
  std::ifstream file(SPECD_TEST_QUANTIZE);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::vector<int32_t> tokens = tokenizer->encode(text).value();
  ASSERT_GE(tokens.size(), kWindow * kWindows);
  const double plain = bits_per_byte(target, tokens, *tokenizer);
  EXPECT_LT(plain, 2) << "the model does not read this text";
  for (const auto& [options, limit] :
       {std::pair{"w8a8", 0.005}, {"fp8", 0.005}, {"w4a16 --group 64", 0.03}}) {
    const double found =
        bits_per_byte(quantized("pico-target", options, folder), tokens, *tokenizer);
    std::printf("%s: %.5f bits per byte, %.5f with bf16, %+.2f %%\n", options, found, plain,
                100 * (found / plain - 1));
    EXPECT_LT(std::abs(found / plain - 1), limit) << options;
    EXPECT_NE(found, plain) << options;
    std::filesystem::remove_all(folder + "/pico-target");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace specd
