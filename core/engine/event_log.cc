#include "core/engine/event_log.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace specd {

void EventLog::add(EngineEvent event) {
  try {
    const MutexLock lock(mutex_);
    event.number = last_number_ + 1;
    event.unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
    events_.push_back(std::move(event));
    ++last_number_;
    if (events_.size() > kEventsMax) events_.pop_front();
  } catch (const std::bad_alloc&) {  // the log has it
  }
  added_.notify_all();
}

std::vector<EngineEvent> EventLog::read(uint64_t after, size_t n_max) const {
  const MutexLock lock(mutex_);
  const auto first = std::upper_bound(
      events_.begin(), events_.end(), after,
      [](uint64_t number, const EngineEvent& event) { return number < event.number; });
  const auto n = std::min<size_t>(n_max, static_cast<size_t>(events_.end() - first));
  return {first, first + static_cast<ptrdiff_t>(n)};
}

uint64_t EventLog::wait(uint64_t after, std::chrono::milliseconds limit) const {
  const auto end = CondVar::Clock::now() + limit;
  MutexLock lock(mutex_);
  while (last_number_ <= after) {
    if (!added_.wait_until(lock, end)) break;
  }
  return last_number_;
}

}  // namespace specd
