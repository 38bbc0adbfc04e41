// Threads with names, so that a debugger, `top -H` and a core dump tell them apart.
#pragma once

#include <pthread.h>

#include <thread>
#include <utility>

namespace specd {

// Runs `body` on a new thread. `name` is a literal of at most 15 characters, the limit of Linux.
template <size_t n, typename Body>
std::thread start_thread(const char (&name)[n], Body body) {
  static_assert(n <= 16, "Linux refuses longer names");
  return std::thread([&name, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), name);
    body();
  });
}

}  // namespace specd
