// Every family against transformers, which saved tiny checkpoints with random weights and recorded
// its outputs for them (tests/reference/make_model_goldens.py). Some prompts end before, some after
// the windows and the contexts that rotary scaling was made for.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/core/family_models.h"
#include "tests/core/model/forward_rig.h"

namespace specd {
namespace {

class Family : public testing::TestWithParam<std::string> {};

TEST_P(Family, logits_and_greedy_text_are_those_of_transformers) {
  const Json& cases = family_goldens().at(GetParam());
  ASSERT_EQ(cases.size(), 3u);
  double largest = 0;
  for (const Json& each : cases) {
    ForwardRig rig(kFamilyModels + GetParam(), "", 2, true);
    const auto prompt = each.at("prompt").get<std::vector<int32_t>>();
    const auto expected = each.at("logits").get<std::vector<float>>();
    const auto greedy = each.at("greedy").get<std::vector<int32_t>>();
    ASSERT_EQ(greedy.size(), 64u);
    rig.add_span(prompt, 0);
    std::vector<float> row = rig.run().back();
    ASSERT_EQ(row.size(), expected.size());
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(double{row[i]} - double{expected[i]}));
    }
    for (size_t step = 0; step < greedy.size(); ++step) {
      ASSERT_EQ(argmax(row), greedy[step]) << "prompt of " << prompt.size() << ", step " << step;
      rig.add_span({greedy[step]}, static_cast<int32_t>(prompt.size() + step));
      row = rig.run().back();
    }
  }
  EXPECT_LT(largest, 5e-4);
}

// Law 1 where windows, biases and norms are.
TEST_P(Family, bits_do_not_depend_on_what_stands_beside_a_row) {
  const Json& longest = family_goldens().at(GetParam()).back();
  const auto tokens = longest.at("prompt").get<std::vector<int32_t>>();
  std::vector<std::vector<float>> plain;
  ForwardRig single(kFamilyModels + GetParam(), "scalar", 1, false);
  for (size_t i = 0; i < tokens.size(); ++i) {
    single.add_span({tokens[i]}, static_cast<int32_t>(i));
    plain.push_back(single.run().front());
  }
  for (const std::string& isa : available_isas()) {
    for (const int32_t n : {7, 64, 150}) {
      ForwardRig rig(kFamilyModels + GetParam(), isa, 2, true);
      for (int32_t begin = 0; begin < 150; begin += n) {
        const int32_t end = std::min(begin + n, 150);
        rig.add_span({tokens.begin() + begin, tokens.begin() + end}, begin);
        const auto logits = rig.run();
        for (int32_t i = begin; i < end; ++i) {
          ASSERT_TRUE(
              same_bits(logits[static_cast<size_t>(i - begin)], plain[static_cast<size_t>(i)]))
              << isa << ", " << n << " rows, row " << i;
        }
      }
    }
  }
}

// The true text is a branch among decoys, after more text than fits any window.
TEST_P(Family, bits_of_a_tree_row_are_those_of_its_path) {
  const auto tokens =
      family_goldens().at(GetParam()).back().at("prompt").get<std::vector<int32_t>>();
  constexpr int32_t kRoot = 61;
  constexpr int32_t kDepth = 45;  // longer than the windows, so that they begin within the tree
  ForwardRig plain(kFamilyModels + GetParam(), "", 1, false);
  plain.add_span({tokens.begin(), tokens.begin() + kRoot + kDepth + 1}, 0);
  const auto expected = plain.run();
  ForwardRig rig(kFamilyModels + GetParam(), "", 2, true);
  rig.add_span({tokens.begin(), tokens.begin() + kRoot}, 0);
  rig.run();
  rig.add_span({tokens[kRoot]}, kRoot);
  std::vector<int32_t> path;
  std::vector<size_t> rows{0};
  for (int32_t node = 0; node < 2 * kDepth; ++node) {
    const int32_t depth = static_cast<int32_t>(path.size()) + 1;
    std::vector<int32_t> slots = path;
    slots.push_back(kRoot + 1 + node);
    const bool is_true = node % 2 == 1;
    rig.add(is_true ? tokens[static_cast<size_t>(kRoot + depth)] : node, kRoot + depth,
            kRoot + 1 + node, kRoot + 1, slots);
    if (!is_true) continue;
    path = slots;
    rows.push_back(static_cast<size_t>(node) + 1);
  }
  const auto logits = rig.run();
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(same_bits(logits[rows[i]], expected[kRoot + i])) << "depth " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Family, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

TEST(Families, every_checkpoint_of_the_tree_has_goldens) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(kFamilyModels)) {
    if (entry.is_directory()) folders.push_back(entry.path().filename());
  }
  std::sort(folders.begin(), folders.end());
  EXPECT_EQ(folders, families());
}

}  // namespace
}  // namespace specd
