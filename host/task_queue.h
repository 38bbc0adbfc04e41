// Tasks that take too long for gRPC's few threads, on threads of their own; so many may wait.
#pragma once

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
  ~TaskQueue();  // what was posted still runs
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // [any] Runs the task after those that wait. False when too many do.
  [[nodiscard]] bool post(std::function<void()> task);

 private:
  void run();

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  bool leaving_ = false;                       // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace specd::host
