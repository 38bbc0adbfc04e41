// SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash of short inputs. Who does not know the
// key cannot make collisions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specd {

struct SipKey {
  uint64_t k0 = 0, k1 = 0;
  static SipKey random();  // from the system
};

uint64_t siphash(const SipKey& key, const void* data, size_t bytes);

}  // namespace specd
