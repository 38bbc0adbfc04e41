// SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash for short inputs. Without the key nobody
// can construct collisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace specd {

struct SipKey {
  uint64_t k0 = 0, k1 = 0;
  static SipKey random();  // from the system's random source
};

uint64_t siphash(const SipKey& key, const void* data, size_t bytes);

// For hash tables over text from outside: its author cannot choose collisions. The process has one
// key.
struct KeyedHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    static const SipKey key = SipKey::random();
    return siphash(key, text.data(), text.size());
  }
};

// The same for numbers from outside.
struct KeyedIntHash {
  template <class T>
  size_t operator()(T value) const {
    return KeyedHash()({reinterpret_cast<const char*>(&value), sizeof(value)});
  }
};

}  // namespace specd
