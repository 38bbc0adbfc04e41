// Finds the longest earlier occurrence of the end of a growing text.
#ifndef SPECD_PROMPT_LOOKUP_SUFFIX_INDEX_H
#define SPECD_PROMPT_LOOKUP_SUFFIX_INDEX_H

#include "text.h"

namespace specd::prompt_lookup {

// After every append, match_end() is the end of the earliest occurrence of the longest n-gram
// (min..max tokens) that also ends the text; 0 when there is none. Earlier means that it ends
// before the text does; it may overlap the suffix.
//
// For every length there is one entry per distinct n-gram, with its first end. When the n-gram of a
// length is known, all its shorter suffixes are known too, with ends no later. So the search goes
// from long to short and stops at the first hit; the lengths passed on the way must be inserted.
// Cost per token: one probe in repeated text, max - min + 1 insertions in new text.
class SuffixIndex {
 public:
  static constexpr uint32_t kLongest = 64;

  SuffixIndex(const sdk::HostAllocator<int32_t>& memory, uint32_t min, uint32_t max)
      : min_(min), max_(max), slots_(memory) {}

  void reserve(std::size_t tokens) { grow_to(tokens * (max_ - min_ + 1)); }

  void append(const GramHasher& hasher, Text& text, int32_t token) {
    text.append(hasher, token);
    const uint32_t n = text.size();
    match_end_ = 0;
    // Room for one more entry of every length.
    if ((used_ + (max_ - min_ + 1)) * 4 > slots_.size() * 3) rehash(hasher, text);
    for (uint32_t length = max_ < n ? max_ : n; length >= min_; --length) {
      const uint64_t hash = text.hash(hasher, n - length, length);
      Slot& slot = find(text, hash, n, length);
      if (slot.end != 0) {
        match_end_ = slot.end;
        return;
      }
      slot = {n, tag_of(hash, length)};
      ++used_;
    }
  }

  uint32_t match_end() const { return match_end_; }

 private:
  struct Slot {
    uint32_t end;  // 0 = free
    uint32_t tag;  // length in the low bits, hash above
  };

  static uint32_t tag_of(uint64_t hash, uint32_t length) {
    return (static_cast<uint32_t>(hash >> 32) << 7) | length;
  }

  // The entry of the n-gram that ends at `end`, or the free slot where it belongs.
  Slot& find(const Text& text, uint64_t hash, uint32_t end, uint32_t length) {
    const std::size_t mask = slots_.size() - 1;
    const uint32_t tag = tag_of(hash, length);
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      Slot& slot = slots_[at];
      if (slot.end == 0) return slot;
      if (slot.tag == tag &&
          same_tokens(text.data() + slot.end - length, text.data() + end - length, length)) {
        return slot;
      }
    }
  }

  void grow_to(std::size_t entries) {
    std::size_t size = 64;
    while (size * 3 < (entries + max_ - min_ + 1) * 4) size *= 2;
    if (used_ == 0 && size > slots_.size()) slots_.assign(size, Slot{0, 0});
  }

  void rehash(const GramHasher& hasher, const Text& text) {
    HostVector<Slot> old(slots_.get_allocator());
    old.swap(slots_);
    try {
      std::size_t size = 64;
      while (size < old.size() * 2 || size * 3 < (max_ - min_ + 1) * 4) size *= 2;
      slots_.assign(size, Slot{0, 0});
    } catch (...) {
      old.swap(slots_);
      throw;
    }
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.end == 0) continue;
      const uint32_t length = slot.tag & 127u;
      std::size_t at = text.hash(hasher, slot.end - length, length) & mask;
      while (slots_[at].end != 0) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  uint32_t min_;
  uint32_t max_;
  uint32_t match_end_ = 0;
  std::size_t used_ = 0;
  HostVector<Slot> slots_;
};

}  // namespace specd::prompt_lookup

#endif
