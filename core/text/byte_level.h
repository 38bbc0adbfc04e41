// GPT-2's alphabet: 256 printable characters that stand for the 256 bytes.
#pragma once

#include <string>
#include <string_view>

namespace specd {

// The character that stands for a byte, as UTF-8.
std::string_view byte_level_character(unsigned char byte);

// The bytes that a token's text stands for. When one of its characters is outside the alphabet, the
// text itself, as in Hugging Face's ByteLevel decoder.
std::string byte_level_bytes(std::string_view token_text);

}  // namespace specd
