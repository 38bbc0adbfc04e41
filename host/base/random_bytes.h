// Bytes that nobody can guess.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "core/base/check.h"

namespace specd::host {

template <size_t kBytes>
std::array<uint8_t, kBytes> random_bytes() {
  static_assert(kBytes <= 256, "more may be cut short");
  std::array<uint8_t, kBytes> value{};
  SPECD_CHECK(getrandom(value.data(), value.size(), 0) == std::ssize(value), "getrandom() failed");
  return value;
}

inline uint64_t random_number() {
  const auto bytes = random_bytes<sizeof(uint64_t)>();
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace specd::host
