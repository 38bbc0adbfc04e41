#include "core/base/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace specd {
namespace {

std::vector<ThreadReport> reports_of(const std::string& thread) {
  std::vector<ThreadReport> all = thread_reports();
  std::erase_if(all, [&](const ThreadReport& each) { return each.thread != thread; });
  return all;
}

void wait_until_busy_for(const Heartbeat& beat, std::chrono::nanoseconds time) {
  while (beat.busy_ns() < static_cast<uint64_t>(time.count()))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Heartbeat, a_thread_is_shown_from_the_start_of_a_turn_to_its_end) {
  {
    Heartbeat beat("one", "work", std::chrono::hours(1));
    ASSERT_EQ(reports_of("one").size(), 1u);
    EXPECT_EQ(reports_of("one")[0].work, "work");
    EXPECT_EQ(reports_of("one")[0].busy_ns, 0u);
    {
      const BusyTurn turn(beat);
      EXPECT_GT(reports_of("one")[0].busy_ns, 0u);
      wait_until_busy_for(beat, std::chrono::milliseconds(20));
      EXPECT_GE(reports_of("one")[0].busy_ns, 20'000'000u);
      EXPECT_FALSE(reports_of("one")[0].is_stuck());
    }
    EXPECT_EQ(reports_of("one")[0].busy_ns, 0u);
    beat.busy();
    EXPECT_LT(beat.busy_ns(), std::chrono::nanoseconds(std::chrono::hours(1)).count())
        << "each turn counts from its own start";
  }
  EXPECT_TRUE(reports_of("one").empty());
}

TEST(Heartbeat, it_is_stuck_beyond_its_limit_and_never_without_one) {
  Heartbeat limited("limited", "", std::chrono::milliseconds(5));
  Heartbeat unlimited("unlimited", "", Heartbeat::kNoLimit);
  limited.busy();
  unlimited.busy();
  wait_until_busy_for(limited, std::chrono::milliseconds(6));
  wait_until_busy_for(unlimited, std::chrono::milliseconds(6));
  EXPECT_TRUE(reports_of("limited")[0].is_stuck());
  EXPECT_FALSE(reports_of("unlimited")[0].is_stuck());
  EXPECT_EQ(busy_text({.thread = "limited", .work = "", .busy_ns = 12'345'678'900}),
            "limited has been busy for 12 s");
  EXPECT_EQ(busy_text({.thread = "t", .work = "w", .busy_ns = 1'000'000'000}),
            "t (w) has been busy for 1 s");
  limited.idle();
  EXPECT_FALSE(reports_of("limited")[0].is_stuck());
}

TEST(Heartbeat, of_two_with_one_name_and_work_the_busiest_is_shown) {
  Heartbeat first("same", "x", Heartbeat::kNoLimit);
  Heartbeat other("same", "y", Heartbeat::kNoLimit);
  std::optional<Heartbeat> second(std::in_place, "same", "x", Heartbeat::kNoLimit);
  ASSERT_EQ(reports_of("same").size(), 2u);
  for (Heartbeat* busy : {&first, &*second}) {
    const BusyTurn turn(*busy);
    uint64_t n_busy = 0;
    for (const ThreadReport& each : reports_of("same")) {
      EXPECT_EQ(each.busy_ns > 0, each.work == "x");
      n_busy += each.busy_ns > 0 ? 1 : 0;
    }
    EXPECT_EQ(n_busy, 1u);
  }
  second.reset();
  EXPECT_EQ(reports_of("same").size(), 2u);
}

TEST(Heartbeat, threads_come_and_go_while_others_look) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        Heartbeat beat("coming", "", Heartbeat::kNoLimit);
        const BusyTurn turn(beat);
        EXPECT_EQ(reports_of("coming").size(), 1u);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_TRUE(reports_of("coming").empty());
}

}  // namespace
}  // namespace specd
