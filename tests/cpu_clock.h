// A clock of the CPU time that this process has used, so that time limits also work on busy
// machines.
#pragma once

#include <chrono>
#include <ctime>

#include "core/base/sanitizer.h"

namespace specd {

// A limit of time is for the plain build; a sanitizer may take so many times as long.
inline constexpr int kSlowdown = SPECD_HAS_SANITIZER ? 20 : 1;

struct CpuClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<CpuClock>;
  static constexpr bool is_steady = true;

  static time_point now() {
    std::timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return time_point(std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec));
  }
};

}  // namespace specd
