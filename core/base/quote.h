// Text from outside inside a message: quoted, one line, bounded.
#pragma once

#include <string>
#include <string_view>

namespace specd {

// 'text' with control characters as \xHH, cut after `bytes_max` bytes (never inside a UTF-8
// character).
inline std::string quote(std::string_view text, size_t bytes_max = 120) {
  static constexpr char kHex[] = "0123456789abcdef";
  size_t kept = text.size();
  if (kept > bytes_max) {
    kept = bytes_max;
    while (kept > 0 && (static_cast<unsigned char>(text[kept]) & 0xC0) == 0x80) --kept;
  }
  std::string out = "'";
  for (const char c : text.substr(0, kept)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '\'';
  if (kept < text.size()) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out;
}

}  // namespace specd
