// Sequences that a drafter failed in one call: counted one by one, logged in one line.
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
                             " requests go on without drafts: " + first_);
  }

 private:
  uint64_t n_ = 0;
  std::string first_;
};

}  // namespace specd
