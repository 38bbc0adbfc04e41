// operator new of a test's program, failing at its n-th call as a test says. One file of a program
// includes it, since it defines what the program has once.
#pragma once

#include <atomic>

#include "tests/destroys_json.h"

namespace specd {

// Until one fails; 0 = none will. Only worker threads run beside the test where it is armed.
inline long g_allocations_left = 0;
inline std::atomic<bool> g_failed{false};

inline bool fails(long& counter) {
  const std::atomic_ref<long> left(counter);
  long now = left;
  while (now != 0 && !left.compare_exchange_weak(now, now - 1)) {
  }
  if (now != 1) return false;
  g_failed = true;
  return true;
}

inline bool allocation_fails() {
  if (g_allocations_left == 1 && destroys_json()) g_allocations_left = 2;
  return fails(g_allocations_left);
}

}  // namespace specd

#include "tests/new_operators.h"

// nlohmann-json 3.11 loses the object or list it has begun when memory ends inside a constructor.
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann::json_abi"; }
