// Who may use the API of the HTTP port. Metrics, probes and /version are for everybody who reaches it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "host/http/http_message.h"

namespace specd::host {

class HttpDoor {
 public:
  // `address`: what the port listens on; the API is for loopback addresses, and with TLS and keys for others. keys_file: has a key on each line, of
  // 16 to 256 printable characters; empty lines and those that begin with '#' say nothing; other users must not be able to
  // read it. Empty = no key is needed. kInvalidArgument and others that name the file and the line.
  static Result<HttpDoor> open(const std::string& address, const std::string& keys_file,
                               bool has_tls = false);

  // [any] Nothing when the request may go on. 401: no key, or none of the file (Authorization: Bearer KEY). 403: `Origin`
  // is another site; or without keys `Host` is neither localhost nor a loopback address, as after DNS rebinding; or
  // the port is on another address, and has no keys or no TLS. "/", which holds no data and asks for the key, needs none.
  std::optional<HttpRefusal> refuse(const HttpRequest& request) const;

  bool operator==(const HttpDoor&) const = default;

 private:
  bool knows(std::string_view key) const;

  bool is_loopback_ = false, has_tls_ = false;
  std::vector<Sha256Digest> keys_;
};

}  // namespace specd::host
