#include "core/spec/breaker.h"

#include <gtest/gtest.h>

namespace specd {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

TEST(Breaker, opens_after_several_failures_in_a_row_only) {
  Breaker breaker;
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < Breaker::kFailuresMax; ++i)
      EXPECT_FALSE(breaker.record(DrafterCall::kPropose, false, kSecond));
    EXPECT_FALSE(breaker.record(DrafterCall::kPropose, true, kSecond));
  }
  EXPECT_FALSE(breaker.is_open(kSecond));
  for (int i = 1; i < Breaker::kFailuresMax; ++i)
    EXPECT_FALSE(breaker.record(DrafterCall::kPropose, false, kSecond));
  EXPECT_TRUE(breaker.record(DrafterCall::kPropose, false, kSecond));
  EXPECT_TRUE(breaker.is_open(kSecond));
  EXPECT_TRUE(breaker.is_open(kSecond + Breaker::kFirstPauseNs - 1));
  EXPECT_FALSE(breaker.is_open(kSecond + Breaker::kFirstPauseNs));
}

TEST(Breaker, function_that_works_does_not_excuse_one_that_fails) {
  Breaker breaker;
  bool is_open = false;
  for (int i = 0; i < Breaker::kFailuresMax; ++i) {
    EXPECT_FALSE(is_open);
    is_open = breaker.record(DrafterCall::kPropose, false, kSecond);
    EXPECT_FALSE(breaker.record(DrafterCall::kUpdate, true, kSecond));
  }
  EXPECT_TRUE(is_open);
  EXPECT_NE(breaker.pause_ns(), 0U) << "propose has not worked yet";
}

TEST(Breaker, pause_doubles_with_each_trial_that_fails_up_to_a_limit_and_one_that_works_ends_it) {
  Breaker breaker;
  uint64_t now = kSecond;
  for (int i = 0; i < Breaker::kFailuresMax; ++i) breaker.record(DrafterCall::kPropose, false, now);
  uint64_t expected = Breaker::kFirstPauseNs;
  for (int trial = 0; trial < 12; ++trial) {
    EXPECT_EQ(breaker.pause_ns(), expected);
    now += expected;
    EXPECT_FALSE(breaker.is_open(now));
    EXPECT_TRUE(breaker.record(DrafterCall::kPropose, false, now))
        << "the first call after a pause decides";
    expected = expected * 2 < Breaker::kPauseNsMax ? expected * 2 : Breaker::kPauseNsMax;
  }
  EXPECT_EQ(breaker.pause_ns(), Breaker::kPauseNsMax);
  now += Breaker::kPauseNsMax;
  EXPECT_FALSE(breaker.record(DrafterCall::kPropose, true, now));
  EXPECT_EQ(breaker.pause_ns(), 0U);
  EXPECT_FALSE(breaker.record(DrafterCall::kPropose, false, now))
      << "counts from the beginning again";
}

}  // namespace
}  // namespace specd
