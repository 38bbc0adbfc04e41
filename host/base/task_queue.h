// Runs tasks that would block a transport's threads, in order, on threads of its own. Bounded.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace specd::host {

class TaskQueue {
 public:
  TaskQueue(size_t threads, size_t waiting_max);
  ~TaskQueue();  // runs what was posted, then joins
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // [any] Runs the task after those that wait; false when waiting_max tasks wait.
  [[nodiscard]] bool post(std::function<void()> task);
  // [any] True when no task waits or runs; false at the timeout.
  [[nodiscard]] bool wait_idle(std::chrono::milliseconds timeout);

 private:
  void run();

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  size_t n_unfinished_ = 0;                    // guarded by mutex_; includes running tasks
  bool leaving_ = false;                       // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace specd::host
