#include "core/spec/live_route.h"

#include "core/base/log.h"

namespace specd {

void LiveRoute::called(DrafterCall call, const Status& status, uint64_t took_ns) {
  const bool is_late = call_ns_max > 0 && took_ns > call_ns_max;
  const uint64_t pause_before = breaker.pause_ns();
  if (!breaker.record(call, status.ok() && !is_late, now_ns())) {
    if (pause_before != 0 && breaker.pause_ns() == 0)
      log(LogLevel::kInfo, "route " + name + ": the drafter works again");
    return;
  }
  const std::string problem = is_late ? std::string(kDrafterCallNames[static_cast<size_t>(call)]) +
                                            "() took " + std::to_string(took_ns / 1'000'000) +
                                            " ms, call_ms_max is " +
                                            std::to_string(call_ns_max / 1'000'000)
                                      : status.to_string();
  last_problem.set(problem);
  log(LogLevel::kWarn, "route " + name + ": the drafter is suspended and tried again in " +
                           std::to_string(breaker.pause_ns() / 1'000'000'000) + " s: " + problem);
}

}  // namespace specd
