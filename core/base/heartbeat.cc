#include "core/base/heartbeat.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace specd {
namespace {

Mutex beats_mutex;
constinit Heartbeat* beats SPECD_GUARDED_BY(beats_mutex) = nullptr;

}  // namespace

Heartbeat::Heartbeat(const char* thread, std::string work, std::chrono::nanoseconds limit)
    : thread_(thread), work_(std::move(work)), limit_ns_(static_cast<uint64_t>(limit.count())) {
  const MutexLock lock(beats_mutex);
  next_ = std::exchange(beats, this);
}

Heartbeat::~Heartbeat() {
  const MutexLock lock(beats_mutex);
  Heartbeat** at = &beats;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
}

void Heartbeat::busy() { since_ns_.store(now_ns(), std::memory_order_relaxed); }

uint64_t Heartbeat::busy_ns() const {
  const uint64_t since = since_ns_.load(std::memory_order_relaxed);
  if (since == 0) return 0;
  // A turn that began after the clock was read is busy, too.
  return std::max<uint64_t>(1, now_ns() - since);
}

std::vector<ThreadReport> thread_reports() {
  std::vector<ThreadReport> reports;
  const MutexLock lock(beats_mutex);
  for (const Heartbeat* each = beats; each != nullptr; each = each->next_) {
    ThreadReport report{each->thread_, each->work_, each->busy_ns(), each->limit_ns_};
    const auto same = std::find_if(reports.begin(), reports.end(), [&](const ThreadReport& one) {
      return one.thread == report.thread && one.work == report.work;
    });
    if (same == reports.end()) {
      reports.push_back(std::move(report));
    } else if (report.busy_ns > same->busy_ns) {
      *same = std::move(report);
    }
  }
  return reports;
}

std::string busy_text(const ThreadReport& report) {
  return report.thread + (report.work.empty() ? "" : " (" + report.work + ")") +
         " has been busy for " + std::to_string(report.busy_ns / 1'000'000'000) + " s";
}

}  // namespace specd
