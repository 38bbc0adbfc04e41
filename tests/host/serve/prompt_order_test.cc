// The order, the bounds and the bytes of the prompt queue.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/serve/prompt_queue.h"

namespace specd::host {
namespace {

constexpr size_t kLong = 2 * PromptQueue::kShortBytes;

// A queue whose threads are kept busy until open().
class PromptOrder : public testing::Test {
 protected:
  void SetUp() override {
    for (const size_t bytes : {kLong, size_t{1}}) {
      ASSERT_TRUE(queue_
                      .add({.bytes = bytes,
                            .priority = 0,
                            .render =
                                [this] {
                                  ++n_busy_;
                                  opened_.wait();
                                }})
                      .ok());
      while (n_busy_ < (bytes == kLong ? 1 : 2)) std::this_thread::yield();
    }
  }
  void TearDown() override { open(); }
  void open() {
    if (!is_open_) open_.set_value();
    is_open_ = true;
    EXPECT_TRUE(queue_.wait_idle(std::chrono::seconds(60)));
  }
  Result<uint64_t> add(const std::string& name, size_t bytes, int64_t priority = 0) {
    return queue_.add({.bytes = bytes, .priority = priority, .render = [this, name] {
                         const std::lock_guard lock(mutex_);
                         order_ += name;
                       }});
  }

  std::promise<void> open_;
  const std::shared_future<void> opened_{open_.get_future()};
  bool is_open_ = false;
  std::atomic<int> n_busy_{0};
  std::mutex mutex_;
  std::string order_;
  PromptQueue queue_;  // last: its tasks use the members above
};

TEST_F(PromptOrder, short_prompts_pass_long_ones_that_wait) {
  // All are long, so that one thread renders them in their order.
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(add(name, 10 * kLong).ok());
  ASSERT_TRUE(add("x", kLong).ok());
  ASSERT_TRUE(add("y", kLong).ok());
  open();
  EXPECT_EQ(order_, "xyabc");
}

TEST_F(PromptOrder, long_prompt_waits_for_no_more_bytes_than_it_has) {
  ASSERT_TRUE(add("L", 3 * kLong).ok());
  std::promise<void> checked;
  // Each adds the next one when it is rendered, for ever newer short prompts.
  std::function<void(int)> add_next = [&](int n) {
    if (n == 0) return checked.set_value();
    ASSERT_TRUE(queue_
                    .add({.bytes = kLong,
                          .priority = 0,
                          .render =
                              [&, n] {
                                {
                                  const std::lock_guard lock(mutex_);
                                  order_ += "s";
                                }
                                add_next(n - 1);
                              }})
                    .ok());
  };
  add_next(10);
  open_.set_value();
  is_open_ = true;
  checked.get_future().wait();
  EXPECT_TRUE(queue_.wait_idle(std::chrono::seconds(60)));
  EXPECT_LE(order_.find('L'), 3U) << order_;
}

TEST_F(PromptOrder, prompts_without_a_byte_do_not_pass_a_long_one_without_end) {
  PromptQueue queue;
  std::promise<void> long_open, short_open;
  std::atomic<int> n_held{0};
  const auto hold = [&](size_t bytes, const std::shared_future<void>& opened) {
    const int before = n_held;
    ASSERT_TRUE(queue
                    .add({.bytes = bytes,
                          .priority = 0,
                          .render =
                              [&n_held, opened] {
                                ++n_held;
                                opened.wait();
                              }})
                    .ok());
    while (n_held == before) std::this_thread::yield();
  };
  hold(kLong, long_open.get_future().share());
  hold(1, short_open.get_future().share());  // to the end, so that one thread renders in order
  size_t n_passed = 0;
  std::promise<size_t> n_passed_long;
  ASSERT_TRUE(
      queue
          .add(
              {.bytes = kLong, .priority = 0, .render = [&] { n_passed_long.set_value(n_passed); }})
          .ok());
  std::function<void()> add_next = [&] {
    if (n_passed == 1000) return;
    ASSERT_TRUE(queue
                    .add({.bytes = 0,
                          .priority = 0,
                          .render =
                              [&] {
                                ++n_passed;
                                add_next();
                              }})
                    .ok());
  };
  add_next();
  long_open.set_value();
  EXPECT_LE(n_passed_long.get_future().get(), kLong / PromptQueue::kTemplateBytes + 1);
  short_open.set_value();
  EXPECT_TRUE(queue.wait_idle(std::chrono::seconds(60)));
}

TEST_F(PromptOrder, priority_counts_as_bytes) {
  ASSERT_TRUE(add("a", kLong).ok());
  ASSERT_TRUE(add("b", kLong, 10).ok());
  ASSERT_TRUE(add("c", kLong, -1).ok());
  open();
  EXPECT_EQ(order_, "cab");
}

TEST_F(PromptOrder, two_long_prompts_do_not_hold_up_a_short_one) {
  PromptQueue queue;
  std::promise<void> open;
  const std::shared_future<void> opened(open.get_future());
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(
        queue.add({.bytes = kLong, .priority = 0, .render = [opened] { opened.wait(); }}).ok());
  std::promise<void> rendered;
  ASSERT_TRUE(
      queue.add({.bytes = 10, .priority = 0, .render = [&] { rendered.set_value(); }}).ok());
  EXPECT_EQ(rendered.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  open.set_value();
}

TEST_F(PromptOrder, bytes_and_prompts_are_bounded_and_given_back) {
  const auto held = std::make_shared<int>(0);
  std::vector<uint64_t> numbers;
  while (true) {
    const auto number =
        queue_.add({.bytes = size_t{4} << 20, .priority = 0, .render = [held] { (void)held; }});
    if (!number.ok()) {
      EXPECT_EQ(number.status().code(), Code::kExhausted);
      EXPECT_NE(number.status().text().find("bytes"), std::string::npos);
      break;
    }
    numbers.push_back(number.value());
  }
  EXPECT_EQ(numbers.size(), PromptQueue::kBytesMax / (size_t{4} << 20) - 1);
  EXPECT_EQ(held.use_count(), static_cast<long>(numbers.size()) + 1);
  for (const uint64_t number : numbers) EXPECT_TRUE(queue_.remove(number));
  EXPECT_FALSE(queue_.remove(numbers[0])) << "it waits no more";
  EXPECT_EQ(held.use_count(), 1) << "what was removed is freed at once";
  for (size_t i = 0; i < PromptQueue::kPromptsMax; ++i) ASSERT_TRUE(add("p", 1).ok());
  EXPECT_EQ(add("p", 1).status().code(), Code::kExhausted);
  open();
  EXPECT_EQ(order_.size(), PromptQueue::kPromptsMax);
}

}  // namespace
}  // namespace specd::host
