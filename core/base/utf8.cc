#include "core/base/utf8.h"

#include <algorithm>

namespace specd {

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {Utf8Step::Kind::kValid, 1, lead};
  // The bounds of the second byte exclude overlong forms, surrogates and values above U+10FFFF.
  uint32_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::Kind::kInvalid, 1, 0};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {Utf8Step::Kind::kIncomplete, i, 0};
    const auto byte = static_cast<unsigned char>(text[at + i]);
    if (byte < low || byte > high) return {Utf8Step::Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Kind::kValid, length, code_point};
}

size_t utf8_error_offset(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Step::Kind::kValid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

void copy_text(std::string_view text, std::span<char> to) {
  const std::string_view fits = text.substr(0, to.size() - 1);
  *std::copy_n(fits.begin(), std::min(fits.size(), utf8_error_offset(fits)), to.begin()) = '\0';
}

size_t utf8_append_lossy(std::string_view bytes, bool at_end, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(bytes, at);
    if (step.kind == Utf8Step::Kind::kIncomplete && !at_end) break;
    if (step.kind == Utf8Step::Kind::kValid) {
      out.append(bytes.substr(at, step.bytes));
    } else {
      out += "\xEF\xBF\xBD";
    }
    at += step.bytes;
  }
  return at;
}

}  // namespace specd
