#include "core/base/run_within.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "core/base/last_words.h"

namespace specd {
namespace {

TEST(RunWithin, work_that_returns_in_time_has_run_and_owns_nothing_any_more) {
  const auto owned = std::make_shared<int>(0);
  std::string late_plugin;
  const Status done = run_within(
      std::chrono::seconds(60), [owned](const std::atomic<bool>&) { ++*owned; }, late_plugin);
  EXPECT_TRUE(done.ok()) << done.text();
  EXPECT_EQ(*owned, 1);
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_EQ(late_plugin, "");
}

TEST(RunWithin, late_work_is_named_and_counted_until_it_returns) {
  const auto owned = std::make_shared<int>(0);
  std::promise<void> open;
  const std::shared_future<void> opened(open.get_future());
  std::string late_plugin;
  const auto start = std::chrono::steady_clock::now();
  const Status done = run_within(
      std::chrono::seconds(1),
      [opened, owned](const std::atomic<bool>& is_late) {
        const Activity before = set_activity({"org.example.late@1.0.0", "plugin X", "create"});
        opened.wait();
        *owned = is_late ? 1 : 0;
        set_activity(before);
      },
      late_plugin);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ(done.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(done.message(), "plugin X: create() has not returned within 1 s");
  EXPECT_EQ(late_plugin, "org.example.late@1.0.0");
  EXPECT_EQ(n_late_works(), 1);
  EXPECT_TRUE(is_late_in("org.example.late@1.0.0"));
  EXPECT_FALSE(is_late_in("org.example.late@2.0.0"));
  EXPECT_FALSE(is_late_in(""));
  open.set_value();
  while (n_late_works() != 0) std::this_thread::yield();
  while (is_late_in("org.example.late@1.0.0")) std::this_thread::yield();
  EXPECT_EQ(*owned, 1);
  EXPECT_EQ(owned.use_count(), 2) << "what late work owns is left alone";
}

TEST(RunWithin, want_of_memory_in_the_work_is_its_answer) {
  std::string late_plugin;
  const Status done = run_within(
      std::chrono::seconds(60), [](const std::atomic<bool>&) { throw std::bad_alloc(); },
      late_plugin);
  EXPECT_EQ(done.code(), Code::kExhausted);
}

}  // namespace
}  // namespace specd
