// operator new of a test's program, failing at its n-th call as a test says. One file of a program
// includes it, since it defines what the program has once.
#pragma once

#include <execinfo.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace specd {

// Until one fails; 0 = none will. The tests are single-threaded where they are armed.
inline long g_allocations_left = 0;
inline bool g_failed = false;

inline bool fails(long& left) {
  if (left == 0 || --left > 0) return false;
  g_failed = true;
  return true;
}

// nlohmann-json 3.11 allocates where it destroys, so that it need not recurse: memory that ends
// there ends the process, and nothing around it can help. That one allocation is left alone.
inline bool destroys_json() {
  void* frames[24];
  const int n = backtrace(frames, 24);
  char** names = backtrace_symbols(frames, n);
  bool found = false;
  for (int i = 0; i < n; ++i) {
    found = found || (std::strstr(names[i], "json_value") != nullptr &&
                      std::strstr(names[i], "destroy") != nullptr);
  }
  std::free(names);
  return found;
}

inline void* allocate(std::size_t bytes, std::size_t alignment) {
  if (g_allocations_left == 1 && destroys_json()) g_allocations_left = 2;
  if (fails(g_allocations_left)) throw std::bad_alloc();
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes == 0 ? 1 : bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace specd

// GCC 12 does not see that these belong together once a sanitizer is on.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes) { return specd::allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return specd::allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return specd::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

// nlohmann-json 3.11 loses the object or list it has begun when memory ends inside a constructor.
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann::json_abi"; }
