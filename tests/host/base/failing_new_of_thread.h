// operator new of a test's program, failing at its n-th call on the threads of one name. One file of
// a program includes it, since it defines what the program has once.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstring>

namespace specd::host {

// The name of the threads, a literal, and how many calls are left until one fails; 0 = none will.
inline std::atomic<const char*> g_failing_thread{""};
inline std::atomic<long> g_calls_left{0};

}  // namespace specd::host

namespace specd {

inline bool allocation_fails() {
  if (host::g_calls_left == 0) return false;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::strcmp(name, host::g_failing_thread) == 0 && host::g_calls_left.fetch_sub(1) == 1;
}

}  // namespace specd

#include "tests/new_operators.h"
