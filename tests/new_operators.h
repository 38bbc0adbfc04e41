// operator new and delete of a test's program. One file of a program includes it, after it has defined
// specd::allocation_fails(), which says whether the present allocation finds no memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace specd {

inline void* allocate(std::size_t bytes, std::size_t alignment) {
  if (allocation_fails()) throw std::bad_alloc();
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
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return specd::allocation_fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return specd::allocation_fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return specd::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
