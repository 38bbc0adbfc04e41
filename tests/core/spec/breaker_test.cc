#include "core/spec/breaker.h"

#include <gtest/gtest.h>

namespace specd {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int32_t kFailuresMax = 5;
constexpr size_t kPropose = 1, kUpdate = 2;  // two things that are watched

TEST(Breaker, opens_after_several_failures_in_a_row_only) {
  Breaker breaker(kFailuresMax);
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < kFailuresMax; ++i) EXPECT_FALSE(breaker.record(kPropose, false, kSecond));
    EXPECT_FALSE(breaker.record(kPropose, true, kSecond));
  }
  EXPECT_FALSE(breaker.is_open(kSecond));
  for (int i = 1; i < kFailuresMax; ++i) EXPECT_FALSE(breaker.record(kPropose, false, kSecond));
  EXPECT_TRUE(breaker.record(kPropose, false, kSecond));
  EXPECT_TRUE(breaker.is_open(kSecond));
  EXPECT_TRUE(breaker.is_open(kSecond + Breaker::kFirstPauseNs - 1));
  EXPECT_FALSE(breaker.is_open(kSecond + Breaker::kFirstPauseNs));
}

TEST(Breaker, function_that_works_does_not_excuse_one_that_fails) {
  Breaker breaker(kFailuresMax);
  bool is_open = false;
  for (int i = 0; i < kFailuresMax; ++i) {
    EXPECT_FALSE(is_open);
    is_open = breaker.record(kPropose, false, kSecond);
    EXPECT_FALSE(breaker.record(kUpdate, true, kSecond));
  }
  EXPECT_TRUE(is_open);
  EXPECT_NE(breaker.pause_ns(), 0U) << "propose has not worked yet";
}

TEST(Breaker, pause_doubles_with_each_trial_that_fails_up_to_a_limit_and_one_that_works_ends_it) {
  Breaker breaker(kFailuresMax);
  uint64_t now = kSecond;
  for (int i = 0; i < kFailuresMax; ++i) breaker.record(kPropose, false, now);
  uint64_t expected = Breaker::kFirstPauseNs;
  for (int trial = 0; trial < 12; ++trial) {
    EXPECT_EQ(breaker.pause_ns(), expected);
    now += expected;
    EXPECT_FALSE(breaker.is_open(now));
    EXPECT_TRUE(breaker.record(kPropose, false, now)) << "the first call after a pause decides";
    expected = expected * 2 < Breaker::kPauseNsMax ? expected * 2 : Breaker::kPauseNsMax;
  }
  EXPECT_EQ(breaker.pause_ns(), Breaker::kPauseNsMax);
  now += Breaker::kPauseNsMax;
  EXPECT_FALSE(breaker.record(kPropose, true, now));
  EXPECT_EQ(breaker.pause_ns(), 0U);
  EXPECT_FALSE(breaker.record(kPropose, false, now)) << "counts from the beginning again";
}

}  // namespace
}  // namespace specd
