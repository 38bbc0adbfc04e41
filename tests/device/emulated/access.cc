// What code compiled with -fsanitize=thread,alignment calls before each access to memory, and where a
// pointer is not aligned as its type demands. Here these calls end in the emulator; the sanitizers' own
// libraries are not linked.
#include <cstddef>
#include <cstdint>

#include "tests/device/emulated/machine.h"

#include "core/base/sanitizer.h"

#define SPECD_ACCESS(name, bytes, write)                                      \
  extern "C" void __tsan_##name(void* data) {                                 \
    specd::emulated::access(data, bytes, write, __builtin_return_address(0)); \
  }
#define SPECD_ACCESSES(bytes)                       \
  SPECD_ACCESS(read##bytes, bytes, false)           \
  SPECD_ACCESS(write##bytes, bytes, true)           \
  SPECD_ACCESS(unaligned_read##bytes, bytes, false) \
  SPECD_ACCESS(unaligned_write##bytes, bytes, true) \
  SPECD_ACCESS(volatile_read##bytes, bytes, false)  \
  SPECD_ACCESS(volatile_write##bytes, bytes, true)

SPECD_ACCESSES(1)
SPECD_ACCESSES(2)
SPECD_ACCESSES(4)
SPECD_ACCESSES(8)
SPECD_ACCESSES(16)

extern "C" {
void __tsan_read_range(void* data, size_t bytes) {
  specd::emulated::access(data, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* data, size_t bytes) {
  specd::emulated::access(data, bytes, true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
// Reference counts of the host; device code has its own atomics.
int __tsan_atomic32_fetch_add(volatile int* at, int value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(volatile int* at, int value, int) {
  return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);
}

#if !SPECD_ASAN  // where UBSan's library is linked
// As libubsan lays it out (ubsan_handlers.h, "TypeMismatchData").
struct TypeMismatch {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(const TypeMismatch* what, const void* data) {
  specd::emulated::misaligned(data, 1u << what->log_alignment, what->file, what->line);
}
#endif
}
