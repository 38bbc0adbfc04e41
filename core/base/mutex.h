// A mutex for clang's thread-safety analysis: members name the mutex that guards them, functions
// the one that their caller must hold, and a build by clang (the sanitizers' are) refuses code that
// breaks either. libstdc++'s std::mutex has no such attributes.
// See https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
//   mutable Mutex mutex_;
//   int32_t n_waiting_ SPECD_GUARDED_BY(mutex_) = 0;
//   void grow() SPECD_REQUIRES(mutex_);
//
// The analysis treats a lambda as a function that holds no mutex. So CondVar::wait() takes no
// predicate: call it in a loop.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define SPECD_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SPECD_THREAD_ATTRIBUTE(x)
#endif

#define SPECD_GUARDED_BY(mutex) SPECD_THREAD_ATTRIBUTE(guarded_by(mutex))
#define SPECD_REQUIRES(...) SPECD_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

namespace specd {

class SPECD_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class SPECD_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SPECD_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() SPECD_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Release the mutex before the scope ends, and take it again.
  void unlock() SPECD_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }
  void lock() SPECD_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Waits may return without a notification: test the condition again.
class CondVar {
 public:
  using Clock = std::chrono::steady_clock;

  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  // False once `deadline` has passed.
  bool wait_until(MutexLock& lock, Clock::time_point deadline) {
    return changed_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
  }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace specd
