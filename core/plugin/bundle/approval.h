// Which bundles may run: all of them, or, once an operator says which, only those that are approved, by the hash of
// their manifest or by a signature of it. The manifest names the hash of every file of the bundle.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace specd {

// Beside the manifest: the 64 bytes of its Ed25519 signature (RFC 8032), as
//   openssl pkeyutl -sign -rawin -inkey key.pem -in plugin.json -out plugin.json.sig
// makes them.
inline constexpr char kSignatureName[] = "plugin.json.sig";
inline constexpr size_t kSignatureBytes = 64;

class Approval {
 public:
  struct Options {
    std::vector<std::string> sha256 = {};  // of manifests, lower-case hex
    // PEM files of Ed25519 public keys, which only root and the user may change.
    std::vector<std::string> keys = {};
  };
  // None = all may run; empty lists = none may. The field of an error is that of Options: "keys[0]".
  static Result<Approval> make(const std::optional<Options>& options);
  Approval();  // approves everything
  ~Approval();
  Approval(Approval&&) noexcept;
  Approval& operator=(Approval&&) noexcept;

  // [any] Whether the manifest with this hash needs no signature.
  bool lists(const std::string& sha256) const;
  bool has_keys() const;
  // [any] kFailedPrecondition, with what would approve it. `signature`: the file's content, empty if there is
  // none.
  Status check(std::string_view manifest, std::string_view signature) const;

 private:
  struct Keys;
  bool approves_all_ = true;
  std::vector<std::string> sha256_;
  std::unique_ptr<Keys> keys_;
};

}  // namespace specd
