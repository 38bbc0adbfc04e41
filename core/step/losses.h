// The sequences that failed in one call to a drafter: each is counted, and one line is logged.
#pragma once

#include <cstdint>
#include <string>

#include "core/step/active_sequence.h"

namespace specd {

// Counts a sequence that goes on without drafts, once.
inline void count_lost(ActiveSequence& member) {
  if (member.is_counted_lost) return;
  member.is_counted_lost = true;
  ++member.route->counters.sequences_lost;
}

class Losses {
 public:
  // Of the route of the members, or of its shadow, whose thread counts what that drafter has failed.
  explicit Losses(LiveRoute& route) : route_(route) {}

  void add(ActiveSequence& member, const std::string& why) {
    if (route_.is_shadow()) return;
    if (n_ == 0) first_ = why;
    ++n_;
    count_lost(member);
  }
  void report(const char* call) const {
    if (n_ == 0) return;
    const std::string problem = std::string(call) + ": " + first_;
    route_.note_defect(route_.drafter_bundle, problem);
    route_.last_problem.set(problem);
    log_because_of(route_.drafter->owner().plugin, LogLevel::kWarn,
                   "route " + route_.name + ": " + call + ": " + std::to_string(n_) +
                       " requests continue without drafts: " + first_);
  }

 private:
  LiveRoute& route_;
  uint64_t n_ = 0;
  std::string first_;
};

}  // namespace specd
