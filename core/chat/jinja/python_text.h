// How Python writes and reads text: numbers, quotes, white space, case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/chat/jinja/marked_text.h"

namespace specd::jinja {

// repr() of a float: the shortest digits that read back as the same number.
std::string float_repr(double value);
// repr() of a string, quotes included; the origin of its bytes is kept, `quotes_from_request` is
// that of the quotes.
void append_string_repr(const MarkedText& text, bool quotes_from_request, MarkedText& out);

// str.isspace() of one character.
bool is_python_space(char32_t c);
// The part of `text` without white space at its ends, in bytes.
TextRange strip_spaces(std::string_view text, bool left, bool right);
// The same without the characters of `characters`.
TextRange strip_characters(std::string_view text, std::string_view characters, bool left,
                           bool right);

bool is_ascii(std::string_view text);
char ascii_upper(char c);
char ascii_lower(char c);

// Characters, not bytes. REQUIRES UTF-8, as all of this file.
size_t count_characters(std::string_view text);

// int() and float() of a text; absent when Python raises ValueError. kInt: fits 64 bits, or absent
// with `too_large` set.
std::optional<int64_t> parse_int(std::string_view text, bool& too_large);
std::optional<double> parse_float(std::string_view text);

// The first place of `needle` at or behind `from`, or npos. Linear in the worst case.
size_t find_text(std::string_view text, std::string_view needle, size_t from);
// What a search through all of the text may cost, as bytes copied: long needles are compared again
// and again.
inline uint64_t search_cost(size_t text_bytes, size_t needle_bytes) {
  return text_bytes * (needle_bytes > 64 ? 4 : 1) + needle_bytes;
}

}  // namespace specd::jinja
