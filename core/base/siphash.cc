#include "core/base/siphash.h"

#include <bit>
#include <random>

namespace specd {

SipKey SipKey::random() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

uint64_t siphash(const SipKey& key, const void* data, size_t bytes) {
  uint64_t v0 = key.k0 ^ 0x736f6d6570736575u, v1 = key.k1 ^ 0x646f72616e646f6du;
  uint64_t v2 = key.k0 ^ 0x6c7967656e657261u, v3 = key.k1 ^ 0x7465646279746573u;
  const auto rounds = [&](int n) {
    for (; n > 0; --n) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  // Little-endian words; the last one has the remaining bytes and the length.
  const auto* byte = static_cast<const uint8_t*>(data);
  for (size_t at = 0; at <= bytes; at += 8) {
    const bool last = at + 8 > bytes;
    uint64_t word = last ? uint64_t{bytes} << 56 : 0;
    for (size_t i = 0; i < (last ? bytes - at : 8); ++i) word |= uint64_t{byte[at + i]} << 8 * i;
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace specd
