#include "core/spec/live_route.h"

#include "core/base/log.h"

namespace specd {

void LiveRoute::called(DrafterCall call, const Status& status, uint64_t took_ns) {
  const bool is_late = call_ns_max > 0 && took_ns > call_ns_max;
  const uint64_t pause_before = breaker.pause_ns();
  const auto say = [this](LogLevel level, EventKind kind, const std::string& what) {
    const std::string text = "route " + name + ": the drafter " + what;
    log(level, text);
    if (tell) tell(kind, text);
  };
  if (!breaker.record(call, status.ok() && !is_late, now_ns())) {
    if (pause_before != 0 && breaker.pause_ns() == 0)
      say(LogLevel::kInfo, EventKind::kResumed, "works again");
    return;
  }
  const std::string problem = is_late ? std::string(kDrafterCallNames[static_cast<size_t>(call)]) +
                                            "() took " + std::to_string(took_ns / 1'000'000) +
                                            " ms, call_ms_max is " +
                                            std::to_string(call_ns_max / 1'000'000)
                                      : status.to_string();
  last_problem.set(problem);
  say(LogLevel::kWarn, EventKind::kSuspended,
      "is suspended and tried again in " + std::to_string(breaker.pause_ns() / 1'000'000'000) +
          " s: " + problem);
}

void LiveRoute::condemn(const std::string& why) {
  if (set_condemned(why) && beside != nullptr) beside->abandon();
}

bool LiveRoute::set_condemned(const std::string& why) {
  if (is_condemned_) return false;
  last_problem.set_final(why);
  log(LogLevel::kError, "route " + name + ": the drafter must not be called any more: " + why);
  return !is_condemned_.exchange(true);
}

}  // namespace specd
