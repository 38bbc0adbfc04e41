// Text as Python reads and writes it: numbers, quotes, white space, case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/chat/jinja/marked_text.h"

namespace specd::jinja {

// repr() of a float: the shortest digits that read back as the same number.
std::string float_repr(double value);
// repr() of a string, with its quotes. The bytes keep their origin; `quotes_from_request` is the
// origin of the quotes.
void append_string_repr(const MarkedText& text, bool quotes_from_request, MarkedText& out);

// str.isspace() of one character.
bool is_python_space(char32_t c);
// The range of `text`, in bytes, without white space at the chosen ends.
TextRange strip_spaces(std::string_view text, bool left, bool right);
// The same for any of `characters` instead of white space.
TextRange strip_characters(std::string_view text, std::string_view characters, bool left,
                           bool right);

bool is_ascii(std::string_view text);
char ascii_upper(char c);
char ascii_lower(char c);

// Counts characters, not bytes. REQUIRES UTF-8, as does everything in this file.
size_t count_characters(std::string_view text);

// int() and float() of a text; absent when Python raises ValueError. An integer beyond 64 bits is
// absent and sets `too_large`.
std::optional<int64_t> parse_int(std::string_view text, bool& too_large);
std::optional<double> parse_float(std::string_view text);

// The first place of `needle` at or after `from`, or npos. Linear even in the worst case.
size_t find_text(std::string_view text, std::string_view needle, size_t from);
// The worst cost of searching the whole text, in bytes copied. Long needles are compared
// repeatedly.
inline uint64_t search_cost(size_t text_bytes, size_t needle_bytes) {
  return text_bytes * (needle_bytes > 64 ? 4 : 1) + needle_bytes;
}

}  // namespace specd::jinja
