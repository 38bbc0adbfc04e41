// A text of tokens with constant-time hashes of its n-grams.
#ifndef SPECD_PROMPT_LOOKUP_TEXT_H
#define SPECD_PROMPT_LOOKUP_TEXT_H

#include <specd/sdk/plugin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd::prompt_lookup {

template <class T>
using HostVector = std::vector<T, sdk::HostAllocator<T>>;

// Polynomial hash modulo 2^61 - 1. The base differs per instance, so a text cannot be crafted to
// collide. Hashes only guide the search: every hit is compared token by token.
class GramHasher {
 public:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

  GramHasher(uint64_t salt, uint32_t longest) {
    base_ = mix(salt) % (kPrime - 1000) + 500;
    power_.resize(longest + 1, 1);
    for (uint32_t i = 1; i <= longest; ++i) power_[i] = multiply(power_[i - 1], base_);
  }

  uint64_t append(uint64_t prefix, int32_t token) const {
    return add(multiply(prefix, base_), static_cast<uint32_t>(token) + uint64_t{1});
  }
  // Hash of the `length` tokens between two prefix hashes; all bits are usable.
  uint64_t between(uint64_t before, uint64_t after, uint32_t length) const {
    const uint64_t cut = multiply(before, power_[length]);
    return mix(add(after, kPrime - cut) + length);
  }
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

 private:
  static uint64_t add(uint64_t a, uint64_t b) {
    const uint64_t sum = a + b;  // < 2^62
    return sum >= kPrime ? sum - kPrime : sum;
  }
  static uint64_t multiply(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = static_cast<Wide>(a) * b;
    return add(static_cast<uint64_t>(product) & kPrime, static_cast<uint64_t>(product >> 61));
  }

  uint64_t base_;
  std::vector<uint64_t> power_;
};

// Append-only.
class Text {
 public:
  explicit Text(const sdk::HostAllocator<int32_t>& memory) : tokens_(memory), prefix_(memory) {
    prefix_.push_back(0);
  }

  void reserve(std::size_t n) {
    tokens_.reserve(n);
    prefix_.reserve(n + 1);
  }
  void append(const GramHasher& hasher, int32_t token) {
    prefix_.push_back(hasher.append(prefix_.back(), token));
    tokens_.push_back(token);
  }
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  const int32_t* data() const { return tokens_.data(); }
  uint64_t hash(const GramHasher& hasher, uint32_t from, uint32_t length) const {
    return hasher.between(prefix_[from], prefix_[from + length], length);
  }

 private:
  HostVector<int32_t> tokens_;
  HostVector<uint64_t> prefix_;  // prefix_[i]: hash of the first i tokens
};

inline bool same_tokens(const int32_t* a, const int32_t* b, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace specd::prompt_lookup

#endif
