// Strict decoding of UTF-8, and the lossy conversion that decoding token bytes needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace specd {

struct Utf8Step {
  enum class Kind {
    kValid,       // `bytes` bytes are the character `code_point`
    kInvalid,     // `bytes` bytes are a maximal subpart, which one U+FFFD replaces
    kIncomplete,  // the text ends inside a character that more bytes could complete
  };
  Kind kind = Kind::kValid;
  uint32_t bytes = 0;
  char32_t code_point = 0;
};

// Looks at the character that starts at text[at]. REQUIRES at < text.size()
Utf8Step utf8_step(std::string_view text, size_t at);

// The offset of the first byte that is not part of a complete, well-formed character, or npos.
size_t utf8_error_offset(std::string_view text);

// Copies what fits of `text`, whole characters, and the NUL that ends it.
void copy_text(std::string_view text, std::span<char> to);

// A character that changes what a terminal shows instead of being shown: the controls C0, DEL and
// C1, the separators of lines, and those that reorder text (Unicode's Bidi_Control).
constexpr bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

// Appends `bytes` to `out` with U+FFFD for each invalid subpart and returns how many bytes it used.
// With `at_end` an incomplete character at the end becomes U+FFFD; otherwise it is left unused.
size_t utf8_append_lossy(std::string_view bytes, bool at_end, std::string& out);

}  // namespace specd
