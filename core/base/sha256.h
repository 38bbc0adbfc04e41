// SHA-256 by OpenSSL, to identify files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace specd {

using Sha256Digest = std::array<uint8_t, 32>;

// Hashes data that comes in pieces. Not thread-safe; one owner.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  Sha256Digest finish();  // call once, after the last update()

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view bytes);
std::string to_hex(std::span<const uint8_t> bytes);  // lower case

}  // namespace specd
