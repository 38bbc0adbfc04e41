// What to do without memory where an exception may not leave.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace specd {

// Runs `fn`, which makes a text and logs it or passes it on. When there is no memory for the text it is
// dropped: it is not worth the process.
template <typename Fn>
void or_drop(Fn&& fn) {
  try {
    fn();
  } catch (const std::bad_alloc&) {
  }
}

// Runs `fn` again until there is memory for it, for what must happen and nobody waits for.
template <typename Fn>
void until_done(Fn&& fn) {
  while (true) {
    try {
      return fn();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

}  // namespace specd
