#include "core/plugin/bundle/approval.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "core/plugin/bundle/trusted_file.h"

namespace specd {
namespace {

constexpr uint64_t kKeyBytesMax = 4096;

struct Free {
  void operator()(BIO* each) const { BIO_free(each); }
  void operator()(EVP_PKEY* each) const { EVP_PKEY_free(each); }
  void operator()(EVP_MD_CTX* each) const { EVP_MD_CTX_free(each); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;

Result<Key> read_key(const std::string& path) {
  SPECD_TRY(const FileDescriptor file, open_trusted_file(path, kKeyBytesMax));
  SPECD_TRY(const std::string text, read_all(file, kKeyBytesMax, path));
  const std::unique_ptr<BIO, Free> bytes(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  Key key(bytes == nullptr ? nullptr : PEM_read_bio_PUBKEY(bytes.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || EVP_PKEY_base_id(key.get()) != EVP_PKEY_ED25519) {
    return Status(Code::kInvalidArgument,
                  quote(path, 400) +
                      ": expected an Ed25519 public key as PEM (openssl pkey -in key.pem -pubout)");
  }
  return key;
}

bool has_signed(EVP_PKEY* key, std::string_view text, std::string_view signature) {
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  const auto bytes = [](std::string_view view) {
    return reinterpret_cast<const unsigned char*>(view.data());
  };
  return context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key) == 1 &&
         EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(text),
                          text.size()) == 1;
}

}  // namespace

struct Approval::Keys {
  std::vector<Key> all;
};

Approval::Approval() : keys_(std::make_unique<Keys>()) {}
Approval::~Approval() = default;
Approval::Approval(Approval&&) noexcept = default;
Approval& Approval::operator=(Approval&&) noexcept = default;

Result<Approval> Approval::make(const std::optional<Options>& options) {
  Approval made;
  if (!options.has_value()) return made;
  made.approves_all_ = false;
  made.sha256_ = options->sha256;
  for (size_t i = 0; i < options->keys.size(); ++i) {
    auto key = read_key(options->keys[i]);
    if (!key.ok()) return key.status().in_field("keys[" + std::to_string(i) + "]");
    made.keys_->all.push_back(std::move(key).value());
  }
  return made;
}

bool Approval::lists(const std::string& sha256) const {
  return approves_all_ || std::find(sha256_.begin(), sha256_.end(), sha256) != sha256_.end();
}

bool Approval::has_keys() const { return !keys_->all.empty(); }

Status Approval::check(std::string_view manifest, std::string_view signature) const {
  const std::string hash = to_hex(sha256(manifest));
  if (lists(hash)) return Status();
  const bool is_signed = std::any_of(keys_->all.begin(), keys_->all.end(), [&](const Key& key) {
    return has_signed(key.get(), manifest, signature);
  });
  if (is_signed) return Status();
  std::string why = "it is not approved: plugins.approved.sha256 does not list " + hash +
                    ", the hash of its plugin.json";
  if (!keys_->all.empty()) {
    why += std::string(", and ") +
           (signature.empty() ? "it has no " : "no key of plugins.approved.keys has made its ") +
           kSignatureName;
  }
  return Status(Code::kFailedPrecondition, why);
}

}  // namespace specd
