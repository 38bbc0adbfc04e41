// The last events of an engine, in memory. A reader copies what it reads, and holds up those who add for no
// longer: one that is too slow misses some, and sees it by the numbers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/base/mutex.h"
#include "core/spec/engine_event.h"

namespace specd {

class EventLog {
 public:
  static constexpr size_t kEventsMax = 1024;

  // [any] Gives the event its number and time. The oldest one goes when there are too many. Drops the
  // event when there is no memory for it.
  void add(EngineEvent event);
  // [any] At most n_max events with larger numbers than `after`, oldest first.
  std::vector<EngineEvent> read(uint64_t after, size_t n_max) const;
  // [any] Waits until there is an event with a larger number than `after`, or so long. The largest number.
  uint64_t wait(uint64_t after, std::chrono::milliseconds limit) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar added_;
  std::deque<EngineEvent> events_ SPECD_GUARDED_BY(mutex_);
  uint64_t last_number_ SPECD_GUARDED_BY(mutex_) = 0;
};

}  // namespace specd
