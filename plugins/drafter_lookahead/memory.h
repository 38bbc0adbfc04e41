// Memory under the instance's quota, and the mixing function for index and hash.
#ifndef SPECD_LOOKAHEAD_MEMORY_H
#define SPECD_LOOKAHEAD_MEMORY_H

#include <specd/sdk/plugin.h>

#include <cstdint>
#include <vector>

namespace specd::lookahead {

template <class T>
using HostVector = std::vector<T, sdk::HostAllocator<T>>;

// One output of splitmix64 with the state `x` (Steele, Lea, Flood 2014).
inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace specd::lookahead

#endif
