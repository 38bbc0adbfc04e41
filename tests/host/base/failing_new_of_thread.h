// operator new of a test's program, failing at its n-th call on the threads of one name. One file of
// a program includes it, since it defines what the program has once.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace specd::host {

// The name of the threads, a literal, and how many calls are left until one fails; 0 = none will.
inline std::atomic<const char*> g_failing_thread{""};
inline std::atomic<long> g_calls_left{0};

inline bool fails_here() {
  if (g_calls_left == 0) return false;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::strcmp(name, g_failing_thread) == 0 && g_calls_left.fetch_sub(1) == 1;
}

}  // namespace specd::host

// GCC 12 does not see that these belong together once a sanitizer is on.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes) {
  void* data = specd::host::fails_here() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
