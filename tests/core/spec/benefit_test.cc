#include "core/spec/benefit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace specd {
namespace {

class BenefitTest : public testing::Test {
 protected:
  // So many steps of one batch size, as the rules would have them: probed or drafted. The verdicts.
  std::vector<BenefitVerdict> run(size_t n_steps, uint64_t ns_with, int32_t n_tokens,
                                  uint64_t ns_without, int32_t n_running = 1) {
    std::vector<BenefitVerdict> verdicts;
    for (size_t i = 0; i < n_steps; ++i) {
      MeasuredStep step{.n_running = n_running, .n_sequences = n_running};
      step.has_drafts = !benefit_.is_probing();
      step.ns = step.has_drafts ? ns_with : ns_without;
      step.n_tokens = n_running * (step.has_drafts ? n_tokens : 1);
      n_probed_ += step.has_drafts ? 0 : 1;
      if (const auto verdict = benefit_.record(step); verdict.has_value())
        verdicts.push_back(*verdict);
    }
    return verdicts;
  }
  Benefit benefit_;
  size_t n_probed_ = 0;
};

TEST_F(BenefitTest, compares_the_time_of_a_token_and_not_of_a_step) {
  // Twice the time for three tokens pays, for two it does not.
  const auto pays = run(80, 2000, 3, 1000);
  ASSERT_EQ(pays.size(), 1u);
  EXPECT_TRUE(pays[0].pays);
  EXPECT_DOUBLE_EQ(pays[0].ns_with, 2000.0 / 3);
  EXPECT_DOUBLE_EQ(pays[0].ns_without, 1000);
  benefit_ = Benefit();
  const auto costs = run(80, 2200, 2, 1000);
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_FALSE(costs[0].pays);
  EXPECT_DOUBLE_EQ(costs[0].ns_with, 1100);
}

TEST_F(BenefitTest, takes_what_is_hardly_slower_for_noise) {
  EXPECT_TRUE(run(80, 1049, 1, 1000).at(0).pays);
  benefit_ = Benefit();
  EXPECT_FALSE(run(80, 1051, 1, 1000).at(0).pays);
}

TEST_F(BenefitTest, probes_ever_less_often_while_drafts_pay) {
  EXPECT_EQ(run(100'000, 1000, 4, 1000).size(), 6u + (100'000 - 63 * 64 - 6 * 16) / (4096 + 16))
      << "after 64, 128, ... 2,048 steps, then after 4,096 each";
  EXPECT_LT(n_probed_, 100'000u / 200) << "less than a half per cent of the steps";
}

TEST_F(BenefitTest, probes_soon_again_while_they_do_not) {
  EXPECT_EQ(run(800, 3000, 2, 1000).size(), 10u);
}

TEST_F(BenefitTest, never_compares_batches_of_different_sizes) {
  // Drafts pay for one sequence and cost for eight. Steps alternate in runs of 30.
  std::vector<BenefitVerdict> one, eight;
  for (int round = 0; round < 40; ++round) {
    for (const BenefitVerdict& each : run(30, 1200, 3, 1000)) one.push_back(each);
    for (const BenefitVerdict& each : run(30, 9000, 3, 2000, 8)) eight.push_back(each);
  }
  ASSERT_FALSE(one.empty());
  ASSERT_FALSE(eight.empty());
  const auto of = [](const BenefitVerdict& verdict, int32_t min, int32_t max) {
    return verdict.n_running_min == min && verdict.n_running_max == max;
  };
  // A probe may end among batches of the other size.
  for (const auto* all : {&one, &eight}) {
    for (const BenefitVerdict& each : *all) {
      EXPECT_TRUE(of(each, 1, 1) || of(each, 8, 15));
      EXPECT_EQ(each.pays, each.n_running_min == 1);
      EXPECT_DOUBLE_EQ(each.ns_without, each.n_running_min == 1 ? 1000 : 2000);
    }
  }
}

TEST_F(BenefitTest, gives_a_probe_up_when_its_batch_size_does_not_come_again) {
  EXPECT_TRUE(run(64, 2000, 1, 1000).empty());
  EXPECT_TRUE(benefit_.is_probing());
  EXPECT_TRUE(run(2 * Benefit::kProbeSteps, 3000, 1, 2000, 4).empty());
  EXPECT_FALSE(benefit_.is_probing());
  EXPECT_TRUE(run(1, 2000, 1, 1000).empty());
  EXPECT_FALSE(benefit_.is_probing()) << "it does not begin again at once";
}

TEST_F(BenefitTest, is_not_moved_by_steps_that_something_held_up) {
  std::mt19937 random(5);
  std::vector<BenefitVerdict> verdicts;
  for (int i = 0; i < 800; ++i) {
    const uint64_t held_up = random() % 5 == 0 ? 1'000'000 : 0;
    for (const BenefitVerdict& each : run(1, 1500 + held_up, 2, 1000 + held_up))
      verdicts.push_back(each);
  }
  ASSERT_GE(verdicts.size(), 3u);
  for (const BenefitVerdict& each : verdicts) {
    EXPECT_DOUBLE_EQ(each.ns_with, 750);
    EXPECT_DOUBLE_EQ(each.ns_without, 1000);
  }
}

TEST_F(BenefitTest, compares_what_was_measured_last) {
  // Texts grow and steps with them: those of the beginning say nothing about now.
  (void)run(64 + 16 + 128 - Benefit::kDraftSteps, 10, 1, 10);
  const auto verdicts = run(Benefit::kDraftSteps + 16, 5000, 1, 1000);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_DOUBLE_EQ(verdicts[0].ns_with, 5000);
  EXPECT_FALSE(verdicts[0].pays);
}

TEST_F(BenefitTest, counts_verdicts_in_a_row_for_each_size) {
  int32_t most = 0;
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(run(64 + 16, 3000, 1, 1000, 8).at(0).n_slower, round + 1);
    for (const BenefitVerdict& each : run(200, 1200, 3, 1000)) most = std::max(most, each.n_slower);
  }
  EXPECT_EQ(most, 0);
}

TEST_F(BenefitTest, weighs_the_tokens_of_the_steps_that_it_compares) {
  // Five tokens a step once, one a step now.
  (void)run(64 + 16 + 128 - Benefit::kDraftSteps, 2000, 5, 1000);
  const auto verdicts = run(Benefit::kDraftSteps + 16, 2000, 1, 1000);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_DOUBLE_EQ(verdicts[0].ns_with, 2000);
}

TEST_F(BenefitTest, gives_a_probe_up_among_steps_with_prompts) {
  EXPECT_TRUE(run(64, 2000, 1, 1000).empty());
  for (size_t i = 0; i < 2 * Benefit::kProbeSteps; ++i) {
    EXPECT_TRUE(benefit_.is_probing());
    EXPECT_FALSE(
        benefit_
            .record(
                {.ns = 9000, .n_running = 1, .n_sequences = 1, .n_tokens = 1, .has_prompt = true})
            .has_value());
  }
  EXPECT_FALSE(benefit_.is_probing());
}

TEST_F(BenefitTest, waits_for_the_probe_of_another_route) {
  MeasuredStep step{
      .ns = 1000, .n_running = 2, .n_sequences = 1, .n_tokens = 1, .has_drafts = true};
  step.may_probe = false;
  for (int i = 0; i < 100; ++i) (void)benefit_.record(step);
  EXPECT_FALSE(benefit_.is_probing());
  step.may_probe = true;
  (void)benefit_.record(step);
  EXPECT_TRUE(benefit_.is_probing());
}

TEST_F(BenefitTest, ignores_steps_without_sequences_of_the_route) {
  for (int i = 0; i < 200; ++i)
    EXPECT_FALSE(benefit_.record({.ns = 1, .n_running = 3, .has_drafts = true}).has_value());
  EXPECT_FALSE(benefit_.is_probing());
}

}  // namespace
}  // namespace specd
