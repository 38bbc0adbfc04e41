#include "host/base/token_text.h"

#include "core/base/utf8.h"

namespace specd::host {

std::string token_text(std::string_view bytes) {
  if (utf8_error_offset(bytes) == std::string_view::npos) return std::string(bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

}  // namespace specd::host
