#include "host/daemon/stuck_threads.h"

#include "core/base/heartbeat.h"
#include "core/base/log.h"

namespace specd::host {

void StuckThreads::look() {
  std::set<std::pair<std::string, std::string>> stuck;
  for (const ThreadReport& each : thread_reports()) {
    if (!each.is_stuck()) continue;
    const auto& who = *stuck.emplace(each.thread, each.work).first;
    if (!told_.contains(who)) {
      log(LogLevel::kError, "a thread is stuck: " + busy_text(each) +
                                "; requests go on, but what it does is left undone "
                                "(specctl status)");
    }
  }
  for (const auto& [thread, work] : told_) {
    if (stuck.contains({thread, work})) continue;
    log(LogLevel::kInfo,
        "a thread works again: " + thread + (work.empty() ? "" : " (" + work + ")"));
  }
  told_.swap(stuck);
}

}  // namespace specd::host
