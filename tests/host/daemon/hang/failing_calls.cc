// Preloaded into a daemon: lets calls of the system fail.
//
//   SPECD_TEST_THREADS=N  after N threads there can be no more
//   SPECD_TEST_FAILING=F  F holds a FailingCalls, which a test changes while the daemon runs:
//                         open() and read() of files, mmap(), and malloc() of 64 KiB or more
#include "tests/host/daemon/hang/failing_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>

namespace {

std::atomic<FailingCalls*> failing{nullptr};

// Before main(): the calls of this library's own start are not counted.
__attribute__((constructor)) void attach() {
  const char* path = std::getenv("SPECD_TEST_FAILING");
  if (path == nullptr) return;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) return;
  void* mapped = reinterpret_cast<void*>(
      syscall(SYS_mmap, nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L));
  close(fd);
  if (mapped != MAP_FAILED) failing = static_cast<FailingCalls*>(mapped);
}

bool fails(std::atomic<int> FailingCalls::*which) {
  FailingCalls* const all = failing;
  if (all == nullptr || (all->*which) == 0 || --(all->*which) != 0) return false;
  ++all->n_failed;
  return true;
}

bool is_file(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t bytes);

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = next<Create>("pthread_create");
  static const char* const most = std::getenv("SPECD_TEST_THREADS");
  static std::atomic<int> left{most == nullptr ? 0 : std::atoi(most)};
  if (most != nullptr && left-- <= 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  if (fails(&FailingCalls::open)) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return openat(AT_FDCWD, path, flags, mode);
}

ssize_t read(int fd, void* data, size_t bytes) {
  if (failing.load() != nullptr && is_file(fd) && fails(&FailingCalls::read)) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_read, fd, data, bytes);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (fails(&FailingCalls::mmap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

void* malloc(size_t bytes) {
  constexpr size_t kLarge = size_t{64} << 10;
  if (bytes >= kLarge && fails(&FailingCalls::malloc)) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(bytes);
}

}  // extern "C"
