// Threads that work in turns say when a turn begins and ends, so that others see which one is busy, and for how
// long: a thread that is stuck says nothing itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace specd {

struct ThreadReport {
  std::string thread;    // its name, as debuggers show it
  std::string work;      // what it works for, where there are several of them
  uint64_t busy_ns = 0;  // since its turn began; 0 = it waits for work
  uint64_t limit_ns = 0;
  bool is_stuck() const { return busy_ns > limit_ns; }
};

class Heartbeat {
 public:
  // What must not count as stuck, because something else bounds its turns: calls of plugins, steps.
  static constexpr std::chrono::nanoseconds kNoLimit = std::chrono::nanoseconds::max();

  // `thread` is a literal. A turn that takes longer than `limit` means that the thread is stuck.
  Heartbeat(const char* thread, std::string work, std::chrono::nanoseconds limit);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // [the thread] A turn begins, or ends.
  void busy();
  void idle() { since_ns_.store(0, std::memory_order_relaxed); }
  // [any] Since the turn began; 0 = the thread waits for work.
  uint64_t busy_ns() const;

 private:
  friend std::vector<ThreadReport> thread_reports();

  const char* const thread_;
  const std::string work_;
  const uint64_t limit_ns_;
  std::atomic<uint64_t> since_ns_{0};  // 0 = idle
  Heartbeat* next_ = nullptr;          // of the list of all
};

// One turn.
class BusyTurn {
 public:
  explicit BusyTurn(Heartbeat& beat) : beat_(beat) { beat_.busy(); }
  ~BusyTurn() { beat_.idle(); }
  BusyTurn(const BusyTurn&) = delete;
  BusyTurn& operator=(const BusyTurn&) = delete;

 private:
  Heartbeat& beat_;
};

// [any] Of every thread of the process that has a heartbeat. Those with the same name and work count as one: the
// one that has been busy for the longest time.
std::vector<ThreadReport> thread_reports();

// "specd-retire has been busy for 12 s", of one that does not wait.
std::string busy_text(const ThreadReport& report);

}  // namespace specd
