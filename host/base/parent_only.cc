#include "host/base/parent_only.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace specd::host {
namespace {

constexpr size_t kBits = 64;
using Word = std::atomic<uint64_t>;  // a bit for each descriptor
using Words = std::array<Word, (size_t{1} << 16) / kBits>;
static_assert(Word::is_always_lock_free);

// Read in a child in which no other thread runs and any lock may be held.
Words& words() {
  static auto* const all = [] {
    auto* made = new Words{};
    pthread_atfork(nullptr, nullptr, [] {
      for (size_t i = 0; i < words().size(); ++i)
        for (uint64_t left = words()[i]; left != 0; left &= left - 1)
          close(static_cast<int>(i * kBits) + std::countr_zero(left));
    });
    return made;
  }();
  return *all;
}

// Null when `fd` is not a number that is kept.
Word* word_of(int fd) {
  const auto at = static_cast<size_t>(fd) / kBits;
  return fd >= 0 && at < words().size() ? &words()[at] : nullptr;
}
uint64_t bit_of(int fd) { return uint64_t{1} << (static_cast<size_t>(fd) % kBits); }

}  // namespace

void keep_from_children(int fd) {
  if (Word* word = word_of(fd)) *word |= bit_of(fd);
}

void forget_descriptor(int fd) {
  if (Word* word = word_of(fd)) *word &= ~bit_of(fd);
}

}  // namespace specd::host
