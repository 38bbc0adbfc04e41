// Quantized checkpoints against the makers' own code and numpy, which recorded what these tiny models
// compute (tests/reference/make_quantized_goldens.py). specd rounds the inputs of INT8 matrices as the
// file says, and never those of the others: their reading is that of the weights alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/json.h"
#include "core/base/to_size.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

const std::string kFolder = SPECD_TEST_REFERENCE "/quantized/";

const Json& goldens() {
  static const Json all = parse_json_file(SPECD_TEST_REFERENCE "/quantized_goldens.json", 64u << 20)
                              .value()
                              .at("models");
  return all;
}

// Loads: the others are refused for what they ask of inputs.
std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& [name, golden] : goldens().items()) {
    if (name != "ct_int8_asymmetric_llama") names.push_back(name);
  }
  return names;
}

bool rounds_inputs(const std::string& name) {
  return name.starts_with("ct_int8_dynamic") || name.starts_with("ct_int8_static");
}

class Quantized : public testing::TestWithParam<std::string> {
 protected:
  const Json& golden_ = goldens().at(GetParam());
  const Json& reading_ =
      golden_.at("readings").at(rounds_inputs(GetParam()) ? "inputs" : "weights");
  const std::vector<int32_t> prompt_ = golden_.at("prompt").get<std::vector<int32_t>>();
  const std::vector<int32_t> greedy_ = reading_.at("greedy").get<std::vector<int32_t>>();
};

TEST_P(Quantized, logits_and_greedy_text_are_those_of_the_dequantized_model) {
  // Has INT8 and FP8 with rounded inputs; no reading was recorded that rounds those of INT8 alone.
  if (GetParam() == "ct_mixed_llama") GTEST_SKIP();
  const auto expected = reading_.at("logits").get<std::vector<float>>();
  const auto gaps = reading_.at("gaps").get<std::vector<double>>();
  ForwardRig rig(kFolder + GetParam(), "", 2, true);
  rig.add_span(prompt_, 0);
  std::vector<float> row = rig.run().back();
  ASSERT_EQ(row.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    largest = std::max(largest, std::abs(double{row[i]} - double{expected[i]}));
  }
  EXPECT_LT(largest, 2e-3);
  ASSERT_EQ(greedy_.size(), 64u);
  for (size_t step = 0; step < greedy_.size(); ++step) {
    // Where rounding the inputs may move a logit by more than the gap, the text is fed as recorded.
    const double noise = rounds_inputs(GetParam()) ? reading_.at("noise")[step].get<double>() : 0.0;
    if (gaps[step] > 2 * noise) {
      ASSERT_EQ(argmax(row), greedy_[step]) << "step " << step << ", gap " << gaps[step];
    }
    rig.add_span({greedy_[step]}, static_cast<int32_t>(prompt_.size() + step));
    row = rig.run().back();
  }
}

// Law 1.
TEST_P(Quantized, bits_do_not_depend_on_rows_threads_instruction_set_or_pages) {
  std::vector<int32_t> tokens = prompt_;
  tokens.insert(tokens.end(), greedy_.begin(), greedy_.end());
  std::vector<std::vector<float>> plain;
  ForwardRig single(kFolder + GetParam(), "scalar", 1, false);
  for (size_t i = 0; i < tokens.size(); ++i) {
    single.add_span({tokens[i]}, static_cast<int32_t>(i));
    plain.push_back(single.run().front());
  }
  const int32_t all = static_cast<int32_t>(tokens.size());
  for (const std::string& isa : available_isas()) {
    for (const int32_t n : {1, 2, 3, 5, 8, 16, 33, 64}) {
      ForwardRig rig(kFolder + GetParam(), isa, 1 + n % 3, true);
      for (int32_t begin = 0; begin < all; begin += n) {
        const int32_t end = std::min(begin + n, all);
        rig.add_span({tokens.begin() + begin, tokens.begin() + end}, begin);
        const auto logits = rig.run();
        for (int32_t i = begin; i < end; ++i) {
          ASSERT_TRUE(same_bits(logits[to_size(i - begin)], plain[to_size(i)]))
              << isa << ", " << n << " rows, row " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Quantized, testing::ValuesIn(models()),
                         [](const auto& model) { return model.param; });

TEST(QuantizedPlan, holds_what_was_planned_from_the_headers) {
  for (const std::string& name : models()) {
    const ForwardRig rig(kFolder + name, "", 1, false);
    const auto planned =
        Transformer::plan(*rig.device, kFolder + name, rig.config, 300, 300, Split());
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned.value().weights, rig.model->held().front().weights) << name;
    EXPECT_EQ(planned.value().activations, rig.model->held().front().activations) << name;
  }
}

}  // namespace
}  // namespace specd
