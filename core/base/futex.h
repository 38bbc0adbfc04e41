// Waiting for a word to change, also between processes that share its memory: futex(2).
#pragma once

#include <atomic>
#include <cstdint>

namespace specd {

// Sleeps while `word` is `seen`, until futex_wake() or `until_ns` on the clock of now_ns(). May return for no
// reason: test the condition again.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, uint64_t until_ns);
void futex_wake(std::atomic<uint32_t>& word);

}  // namespace specd
