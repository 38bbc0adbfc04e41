#include "host/base/task_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace specd::host {
namespace {

TEST(TaskQueue, runs_so_many_at_once_and_lets_so_many_wait) {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<int> done{0};
  {
    TaskQueue queue(2, 3);
    std::promise<void> open;  // declared after the queue: its destructor frees the tasks
    const std::shared_future<void> opened(open.get_future());
    const auto task = [&, opened] {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      opened.wait();
      --running;
      ++done;
    };
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(queue.post(task));
      while (running <= i) std::this_thread::yield();  // it has left the queue
    }
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.post(task));
    EXPECT_FALSE(queue.post(task));
    open.set_value();
  }
  EXPECT_EQ(done, 5);  // those that waited when the queue went, too
  EXPECT_EQ(most, 2);
}

}  // namespace
}  // namespace specd::host
