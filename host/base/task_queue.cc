#include "host/base/task_queue.h"

#include <utility>

#include "core/base/thread.h"

namespace specd::host {

TaskQueue::TaskQueue(size_t threads, size_t waiting_max) : waiting_max_(waiting_max) {
  for (size_t i = 0; i < threads; ++i)
    threads_.push_back(start_thread("specd-tasks", [this] { run(); }));
}

TaskQueue::~TaskQueue() {
  {
    const MutexLock lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TaskQueue::post(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= waiting_max_) return false;
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

void TaskQueue::run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!leaving_ && waiting_.empty()) changed_.wait(lock);
    if (waiting_.empty()) return;
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // destroys what it captured outside of the lock
    lock.lock();
  }
}

}  // namespace specd::host
