// The sequences that failed in one call to a drafter: each is counted, and one line is logged.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/log.h"
#include "core/spec/live_route.h"

namespace specd {

class Losses {
 public:
  void add(const std::string& why) {
    if (n_++ == 0) first_ = why;
  }
  void report(LiveRoute& route, const char* call) const {
    if (n_ == 0) return;
    route.counters.sequences_lost += n_;
    route.last_problem.set(std::string(call) + ": " + first_);
    log(LogLevel::kWarn, "route " + route.name + ": " + call + ": " + std::to_string(n_) +
                             " requests continue without drafts: " + first_);
  }

 private:
  uint64_t n_ = 0;
  std::string first_;
};

}  // namespace specd
