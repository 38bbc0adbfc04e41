#include "core/spec/live_route.h"

#include <cstdio>
#include <optional>

#include "core/base/bad_alloc.h"
#include "core/base/log.h"

namespace specd {

void LiveRoute::called(DrafterCall call, const Status& status, uint64_t took_ns) {
  const bool is_late = call_ns_max > 0 && took_ns > call_ns_max;
  const uint64_t pause_before = breaker.pause_ns();
  const auto function = static_cast<size_t>(call);
  if (!breaker.record(function, status.ok() && !is_late, now_ns())) {
    if (pause_before != 0 && breaker.pause_ns() == 0)
      say(LogLevel::kInfo, EventKind::kResumed, "works again");
    return;
  }
  if (is_late) {
    suspended_by(SuspensionRule::kDeadline, breaker,
                 std::string(kDrafterCallNames[function]) + "() took " +
                     std::to_string(took_ns / 1'000'000) + " ms, call_ms_max is " +
                     std::to_string(call_ns_max / 1'000'000));
  } else {
    const bool is_device = status.code() == Code::kUnavailable;  // SPECD_E_DEVICE
    suspended_by(is_device ? SuspensionRule::kDevice : SuspensionRule::kDefect, breaker,
                 status.to_string());
  }
}

void LiveRoute::measured(const MeasuredStep& step) {
  const std::optional<BenefitVerdict> verdict = benefit.record(step);
  if (!verdict.has_value()) return;
  const uint64_t pause_before = benefit_breaker.pause_ns();
  // After a pause the first one decides.
  if (!verdict->pays && verdict->n_slower < kSlowerMax && pause_before == 0) return;
  if (!benefit_breaker.record(0, verdict->pays, now_ns())) {
    if (pause_before != 0 && benefit_breaker.pause_ns() == 0)
      say(LogLevel::kInfo, EventKind::kResumed, "pays again");
    return;
  }
  char text[160];
  (void)std::snprintf(text, sizeof(text),
                      "its drafts do not pay: %.3f ms per token with them and %.3f ms without, "
                      "while %d to %d sequences run",
                      verdict->ns_with / 1e6, verdict->ns_without / 1e6, verdict->n_running_min,
                      verdict->n_running_max);
  suspended_by(SuspensionRule::kBenefit, benefit_breaker, text);
}

void LiveRoute::say(LogLevel level, EventKind kind, const std::string& what) const {
  const std::string text = "route " + name + ": the drafter " + what;
  log(level, text);
  if (tell) tell(kind, text);
}

void LiveRoute::suspended_by(SuspensionRule rule, const Breaker& by, const std::string& problem) {
  ++counters.suspensions[static_cast<size_t>(rule)];
  last_problem.set(problem);
  say(LogLevel::kWarn, EventKind::kSuspended,
      "is suspended and tried again in " + std::to_string(by.pause_ns() / 1'000'000'000) +
          " s, by the rule " + kSuspensionRuleNames[static_cast<size_t>(rule)] + ": " + problem);
}

void LiveRoute::note_defect(const BundleInfo& of, const std::string& what) {
  if (is_defect_told_.exchange(true) || !tell) return;
  or_drop([&] {
    tell(EventKind::kDefect, "route " + name + ": plugin " + of.id +
                                 " fails or breaks a rule; what follows is only counted: " + what);
  });
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
