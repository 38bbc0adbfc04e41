#include "host/http/http_door.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/base/file_owner.h"

namespace specd::host {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;
constexpr size_t kKeyBytesMin = 16, kKeyBytesMax = 256;
constexpr std::array<std::string_view, 8> kPublic = {
    "/metrics", "/health",  "/health/live",    "/health/ready",
    "/ping",    "/version", "/v2/health/live", "/v2/health/ready"};

bool is_loopback_address(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// "[::1]" of "[::1]:8000".
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.ends_with(']') ? host : host.substr(0, colon);
}

// Any other name may be made to point to this machine by its owner (DNS rebinding).
bool is_loopback_name(std::string_view host) {
  const std::string name(without_port(host));
  return name == "localhost" || name == "[::1]" || is_loopback_address(name);
}

// Whether the page that sent this request is one of the server that it calls by this name.
bool is_own_page(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == host;
}

}  // namespace

Result<HttpDoor> HttpDoor::open(const std::string& address, const std::string& keys_file,
                                bool has_tls) {
  HttpDoor door;
  door.has_tls_ = has_tls;
  door.is_loopback_ = is_loopback_address(address);
  if (keys_file.empty()) return door;
  SPECD_OK_OR_RETURN(check_file_owner(keys_file, true));
  SPECD_TRY(const std::string file, read_text_file(keys_file, kFileBytesMax));
  size_t line = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    std::string_view key = std::string_view(file).substr(at, end - at);
    at = end + 1;
    ++line;
    if (key.ends_with('\r')) key.remove_suffix(1);
    if (key.empty() || key.starts_with('#')) continue;
    if (key.size() < kKeyBytesMin || key.size() > kKeyBytesMax ||
        std::any_of(key.begin(), key.end(), [](char c) { return c <= ' ' || c > '~'; }))
      return Status(Code::kInvalidArgument,
                    keys_file + ":" + std::to_string(line) + ": expected a key of " +
                        std::to_string(kKeyBytesMin) + " to " + std::to_string(kKeyBytesMax) +
                        " printable characters without spaces");
    door.keys_.push_back(sha256(key));
  }
  if (door.keys_.empty())
    return Status(Code::kInvalidArgument, keys_file + ": expected at least one key, found none");
  return door;
}

// Takes the same time for every key of the same length, whatever it has in common with those of the file.
bool HttpDoor::knows(std::string_view key) const {
  const Sha256Digest digest = sha256(key);
  bool found = false;
  for (const Sha256Digest& each : keys_) {
    unsigned difference = 0;
    for (size_t i = 0; i < digest.size(); ++i) difference |= unsigned{digest[i]} ^ each[i];
    found = found || difference == 0;
  }
  return found;
}

std::optional<HttpRefusal> HttpDoor::refuse(const HttpRequest& request) const {
  if (std::find(kPublic.begin(), kPublic.end(), request.path) != kPublic.end()) return std::nullopt;
  const std::string_view host = request.header("host");
  // Without keys a name that its owner lets point to this machine would do.
  const bool may_be_own = !keys_.empty() || is_loopback_name(host);
  if (const std::string_view origin = request.header("origin");
      !origin.empty() && !(may_be_own && is_own_page(origin, host)))
    return HttpRefusal{
        403, "a page of another site (Origin: " + quote(origin) + ") may not use this server"};
  if (!is_loopback_ && (!has_tls_ || keys_.empty()))
    return HttpRefusal{403,
                       "this address serves metrics and probes only; the API needs a loopback "
                       "address in http.listen, or http.tls and http.api_keys_file"};
  if (keys_.empty()) {
    if (host.empty() || is_loopback_name(host)) return std::nullopt;
    return HttpRefusal{403, "expected a Host that is localhost or a loopback address, found " +
                                quote(host) + "; with http.api_keys_file every one is taken"};
  }
  if (request.path == "/") return std::nullopt;
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = request.header("authorization");
  const bool has_scheme =
      given.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(), [](char ours, char theirs) {
        return ours == (theirs >= 'A' && theirs <= 'Z' ? theirs - 'A' + 'a' : theirs);
      });
  if (!has_scheme) return HttpRefusal{401, "expected an API key: Authorization: Bearer KEY"};
  if (knows(given.substr(kScheme.size()))) return std::nullopt;
  return HttpRefusal{401, "the API key is not one of this server's"};
}

}  // namespace specd::host
