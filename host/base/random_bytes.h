// Bytes that nobody can guess.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace specd::host {

template <size_t kBytes>
std::array<uint8_t, kBytes> random_bytes() {
  std::array<uint8_t, kBytes> value{};
  [[maybe_unused]] const ssize_t unused = getrandom(value.data(), value.size(), 0);
  return value;
}

inline uint64_t random_number() {
  const auto bytes = random_bytes<sizeof(uint64_t)>();
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace specd::host
