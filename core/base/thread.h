// Threads with names, so that a debugger, `top -H` and a core dump tell them apart.
#pragma once

#include <pthread.h>

#include <array>
#include <system_error>
#include <thread>
#include <utility>

namespace specd {

// For a signal handler that says what happened when the thread's own stack is full.
class AlternateStack {
 public:
  AlternateStack();
  ~AlternateStack();
  AlternateStack(const AlternateStack&) = delete;
  AlternateStack& operator=(const AlternateStack&) = delete;

 private:
  bool is_set_ = false;
  // On the stack of the thread itself, at the end that an overflow does not reach. A processor with tiles (AMX) puts
  // 11 KiB of registers there before the handler runs.
  alignas(16) std::array<char, size_t{32} << 10> memory_;
};

// Runs `body` on a new thread. `name` is a literal of at most 15 characters, the limit of Linux.
// Throws std::system_error when there can be no more threads.
template <size_t n, typename Body>
std::thread try_start_thread(const char (&name)[n], Body body) {
  static_assert(n <= 16, "Linux refuses longer names");
  return std::thread([&name, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), name);
    const AlternateStack alternate_stack;
    body();
  });
}

// Says that the thread cannot be started, and ends the process with code 1.
[[noreturn]] void end_for_want_of_thread(const char* name, const std::system_error& error);

// The same for a thread without which the process is of no use.
template <size_t n, typename Body>
std::thread start_thread(const char (&name)[n], Body body) {
  try {
    return try_start_thread(name, std::move(body));
  } catch (const std::system_error& error) {
    end_for_want_of_thread(name, error);
  }
}

}  // namespace specd
