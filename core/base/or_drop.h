// For texts that nobody waits for.
#pragma once

#include <new>

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

}  // namespace specd
