#include "core/request/logit_bias.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace specd {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

TEST(LogitBias, every_row_gets_its_tokens_bias_and_stop_tokens_are_masked_until_the_least_length) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<kernels::TokenBias> bias;
    std::vector<int32_t> stops;
    for (int32_t token = 0; token < 12; ++token) {
      if (random() % 3 == 0) bias.push_back({token, static_cast<float>(token) - 5});
      if (random() % 4 == 0) stops.insert(stops.begin(), token);
    }
    std::shuffle(bias.begin(), bias.end(), random);
    const auto min_tokens = static_cast<int32_t>(random() % 4);
    const LogitBias all(bias, stops, min_tokens);
    bool applied = false;  // to a later row
    for (int32_t n = 5; n >= 0; --n) {
      std::map<int32_t, float> expected, found;
      for (const kernels::TokenBias& each : bias) expected[each.token] = each.add;
      if (n < min_tokens) {
        for (const int32_t token : stops) expected[token] = kNever;
      }
      const auto [first, last] = all.range(n);
      for (size_t i = first; i < last; ++i) {
        const kernels::TokenBias& each = all.entries().at(i);
        EXPECT_TRUE(found.emplace(each.token, each.add).second) << "once";
      }
      EXPECT_EQ(found, expected) << "trial " << trial << ", token " << n;
      applied = applied || !expected.empty();
      EXPECT_EQ(all.applies_from(n), applied);
    }
  }
}

TEST(LogitBias, of_a_request_without_any_is_empty) {
  EXPECT_FALSE(LogitBias().applies_from(0));
  EXPECT_FALSE(LogitBias({}, {1, 2}, 0).applies_from(0));
}

}  // namespace
}  // namespace specd
