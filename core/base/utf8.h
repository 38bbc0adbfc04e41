// UTF-8: strict decoding, and the lossy reading that decoders of token bytes need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace specd {

struct Utf8Step {
  enum class Kind {
    kValid,       // `bytes` bytes are the character `code_point`
    kInvalid,     // `bytes` bytes are a maximal subpart: one U+FFFD stands for them
    kIncomplete,  // the text ends inside a character that may still become valid
  };
  Kind kind = Kind::kValid;
  uint32_t bytes = 0;
  char32_t code_point = 0;
};

// Looks at the character that starts at text[at]. REQUIRES at < text.size()
Utf8Step utf8_step(std::string_view text, size_t at);

// The offset of the first byte that is not well-formed UTF-8 (an incomplete end included), or npos.
size_t utf8_error_offset(std::string_view text);

// Appends the text of `bytes` to `out`, U+FFFD for each maximal subpart, and returns how many bytes
// were used. An incomplete end is left unused, or becomes U+FFFD when `at_end`.
size_t utf8_append_lossy(std::string_view bytes, bool at_end, std::string& out);

}  // namespace specd
