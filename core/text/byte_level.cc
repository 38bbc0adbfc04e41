#include "core/text/byte_level.h"

#include <array>
#include <cstdint>

#include "core/base/utf8.h"

namespace specd {
namespace {

// 33-126, 161-172 and 174-255 stand for themselves. The other 68 bytes map to U+0100 to U+0143 in
// increasing order.
constexpr size_t kAlphabetEnd = 0x144;
constexpr int16_t kNone = -1;

struct Alphabet {
  std::array<int16_t, kAlphabetEnd> bytes;  // by character
  std::array<std::string, 256> characters;  // by byte
};

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet a;
    a.bytes.fill(kNone);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const uint32_t c = itself ? byte : next++;
      a.bytes[c] = static_cast<int16_t>(byte);
      if (c < 0x80) {
        a.characters[byte] = static_cast<char>(c);
      } else {
        a.characters[byte] = {static_cast<char>(0xC0 | c >> 6),
                              static_cast<char>(0x80 | (c & 0x3F))};
      }
    }
    return a;
  }();
  return made;
}

}  // namespace

std::string_view byte_level_character(unsigned char byte) { return alphabet().characters[byte]; }

std::string byte_level_bytes(std::string_view token_text) {
  std::string bytes;
  for (size_t at = 0; at < token_text.size();) {
    const Utf8Step step = utf8_step(token_text, at);
    const bool inside = step.kind == Utf8Step::Kind::kValid && step.code_point < kAlphabetEnd &&
                        alphabet().bytes[step.code_point] != kNone;
    if (!inside) return std::string(token_text);
    bytes += static_cast<char>(alphabet().bytes[step.code_point]);
    at += step.bytes;
  }
  return bytes;
}

}  // namespace specd
