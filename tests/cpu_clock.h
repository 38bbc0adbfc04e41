// The processor's time that this process has used, as a clock: limits of time hold on busy
// machines.
#pragma once

#include <chrono>
#include <ctime>

namespace specd {

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
