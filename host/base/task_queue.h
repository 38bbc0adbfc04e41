// A bounded queue of tasks with its own threads, for work that would block a transport's threads.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace specd::host {

class TaskQueue {
 public:
  TaskQueue(size_t threads, size_t waiting_max);
  ~TaskQueue();  // runs the waiting tasks, then joins
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // [any] Runs the task after those that wait; false when waiting_max tasks wait.
  [[nodiscard]] bool post(std::function<void()> task);

 private:
  void run();

  const size_t waiting_max_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ SPECD_GUARDED_BY(mutex_);
  bool leaving_ SPECD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace specd::host
