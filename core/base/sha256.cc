#include "core/base/sha256.h"

#include <openssl/evp.h>

#include "core/base/check.h"

namespace specd {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

// OpenSSL fails here only when memory or the algorithm is missing, which no input can cause.
Sha256::Sha256() : context_(std::make_unique<Context>()) {
  SPECD_CHECK(context_->evp != nullptr, "no memory for SHA-256");
  SPECD_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1, "no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  SPECD_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  unsigned int length = 0;
  SPECD_CHECK(
      EVP_DigestFinal_ex(context_->evp, digest.data(), &length) == 1 && length == digest.size(),
      "SHA-256 failed");
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest sha256(std::string_view bytes) {
  return sha256(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace specd
