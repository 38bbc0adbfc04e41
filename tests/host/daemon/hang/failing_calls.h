// What a test tells failing_calls.cc in a daemon, through a file that both map.
#pragma once

#include <atomic>

struct FailingCalls {
  // The n-th call from now on fails, once; 0 = none does.
  std::atomic<int> open{0}, read{0}, mmap{0}, malloc{0};
  std::atomic<int> n_failed{0};
};
