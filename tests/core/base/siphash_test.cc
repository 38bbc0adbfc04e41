#include "core/base/siphash.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace specd {
namespace {

// From the authors' reference: key 00 01 .. 0f, input 00 01 .. n-1, output bytes in order.
TEST(SipHash, equals_the_authors_vectors) {
  const SipKey key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  std::array<uint8_t, 64> input;
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint8_t>(i);
  const std::pair<size_t, uint64_t> vectors[] = {
      {0, 0x726fdb47dd0e0e31u},  {1, 0x74f839c593dc67fdu}, {2, 0x0d6c8009d9a94f5au},
      {3, 0x85676696d7fb7e2du},  {7, 0xab0200f58b01d137u}, {8, 0x93f5f5799a932462u},
      {15, 0xa129ca6149be45e5u},
  };
  for (const auto& [bytes, expected] : vectors) {
    EXPECT_EQ(siphash(key, input.data(), bytes), expected) << bytes << " bytes";
  }
}

TEST(SipHash, two_random_keys_differ) {
  const SipKey a = SipKey::random(), b = SipKey::random();
  EXPECT_FALSE(a.k0 == b.k0 && a.k1 == b.k1);
  EXPECT_NE(siphash(a, "specd", 5), siphash(b, "specd", 5));
}

}  // namespace
}  // namespace specd
