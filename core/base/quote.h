// Makes text from outside safe to show in a message: quoted, on one line, of limited length.
#pragma once

#include <string>
#include <string_view>

#include "core/base/utf8.h"

namespace specd {

// The text as one line of UTF-8. Characters that is_hidden() names and bytes that are not UTF-8
// become \xHH.
inline std::string escaped(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const std::string_view bytes = text.substr(at, step.bytes);
    if (step.kind == Utf8Step::Kind::kValid && !is_hidden(step.code_point)) {
      out += bytes;
    } else {
      for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    at += step.bytes;
  }
  return out;
}

// The text in single quotes, escaped, and cut to at most `bytes_max` bytes at a character boundary.
inline std::string quote(std::string_view text, size_t bytes_max = 120) {
  size_t kept = text.size();
  if (kept > bytes_max) {
    kept = bytes_max;
    for (int i = 0; i < 3 && (static_cast<unsigned char>(text[kept]) & 0xC0) == 0x80; ++i) --kept;
  }
  std::string out = "'" + escaped(text.substr(0, kept)) + "'";
  if (kept < text.size()) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out;
}

}  // namespace specd
