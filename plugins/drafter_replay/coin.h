// The deterministic draws of the replay drafter. Tests include this file to compute the
// expected outcome.
#ifndef SPECD_REPLAY_COIN_H
#define SPECD_REPLAY_COIN_H

#include <cstdint>

namespace specd::replay {

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t draw(uint64_t seed, uint64_t position, uint64_t purpose) {
  return mix(mix(mix(seed) + position) + purpose);
}

// Whether the chain node for the token at `position` of the sequence is the recorded token.
inline bool tells_truth(uint64_t seed, uint64_t position, double acceptance) {
  return static_cast<double>(draw(seed, position, 0) >> 11) * 0x1p-53 < acceptance;
}

// Returns a token other than `truth`; vocab_size is at least 2.
inline int32_t other_token(uint64_t random, int32_t truth, int32_t vocab_size) {
  const uint64_t step = 1 + random % static_cast<uint64_t>(vocab_size - 1);
  return static_cast<int32_t>((static_cast<uint64_t>(truth) + step) %
                              static_cast<uint64_t>(vocab_size));
}

}  // namespace specd::replay

#endif
