#include "host/bench/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace specd::host {
namespace {

TEST(Statistics, median_and_percentiles_of_known_values) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.5), 50);
  EXPECT_EQ(percentile(hundred, 0.9), 90);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  EXPECT_EQ(percentile(hundred, 1), 100);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Statistics, the_interval_covers_the_true_median_about_as_often_as_it_says) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> draw(0.5, 0.4);
  const double truth = std::exp(0.5);
  int covered = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(31);
    for (double& value : values) value = draw(random);
    const Interval interval = median_interval(values);
    EXPECT_LE(interval.low, median(values));
    EXPECT_GE(interval.high, median(values));
    covered += interval.low <= truth && truth <= interval.high ? 1 : 0;
  }
  EXPECT_GT(covered, kTrials * 89 / 100);
  EXPECT_LT(covered, kTrials);  // an interval that is far too wide would always cover
}

TEST(Statistics, an_interval_of_one_value_is_that_value) {
  const Interval one = median_interval({2.5});
  EXPECT_EQ(one.low, 2.5);
  EXPECT_EQ(one.high, 2.5);
}

// Slow and plain: every period, every place.
bool loop_oracle(const std::vector<int32_t>& tokens) {
  const size_t n = std::min<size_t>(64, tokens.size());
  for (size_t period = 1; period <= 16; ++period) {
    if (period * 4 > n) break;
    bool same = true;
    for (size_t i = tokens.size() - n; i + period < tokens.size(); ++i)
      same = same && tokens[i] == tokens[i + period];
    if (same) return true;
  }
  return false;
}

TEST(Statistics, loops_are_found_by_their_period_and_nothing_else_is) {
  std::mt19937 random(5);
  int found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int32_t> tokens(random() % 120);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    const size_t period = 1 + random() % 20, from = random() % 80;
    for (size_t i = from + period; i < tokens.size(); ++i) tokens[i] = tokens[i - period];
    EXPECT_EQ(ends_in_loop(tokens), loop_oracle(tokens));
    found += ends_in_loop(tokens) ? 1 : 0;
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(found, 1900);
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 200; ++i) text.push_back(i % 17);
  EXPECT_FALSE(ends_in_loop(text)) << "a period of 17 is no loop";
  for (int32_t i = 0; i < 64; ++i) text.push_back(i % 16);
  EXPECT_TRUE(ends_in_loop(text));
  text.push_back(99);
  EXPECT_FALSE(ends_in_loop(text)) << "the loop is left";
  EXPECT_FALSE(ends_in_loop({}));
  EXPECT_FALSE(ends_in_loop({1, 1, 1}));
  EXPECT_TRUE(ends_in_loop({1, 1, 1, 1}));
}

}  // namespace
}  // namespace specd::host
