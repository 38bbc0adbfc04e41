#include "host/daemon/stuck_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "core/base/heartbeat.h"

namespace specd::host {
namespace {

std::string logged_by(StuckThreads& threads) {
  testing::internal::CaptureStderr();
  threads.look();
  return testing::internal::GetCapturedStderr();
}

TEST(StuckThreads, one_that_is_stuck_is_told_once_and_again_when_it_works) {
  Heartbeat beat("specd-test", "x.drafter", std::chrono::milliseconds(1));
  Heartbeat plugin("specd-plugin", "", Heartbeat::kNoLimit);
  StuckThreads threads;
  EXPECT_EQ(logged_by(threads), "");
  for (int i = 0; i < 2; ++i) {
    beat.busy();
    plugin.busy();
    while (beat.busy_ns() < 2'000'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string stuck = logged_by(threads);
    EXPECT_NE(stuck.find("a thread is stuck: specd-test (x.drafter) has been busy for "),
              std::string::npos)
        << stuck;
    EXPECT_EQ(stuck.find("specd-plugin"), std::string::npos);
    EXPECT_EQ(logged_by(threads), "") << "once";
    beat.idle();
    const std::string works = logged_by(threads);
    EXPECT_NE(works.find("a thread works again: specd-test (x.drafter)"), std::string::npos)
        << works;
    EXPECT_EQ(logged_by(threads), "");
  }
}

}  // namespace
}  // namespace specd::host
