#include "core/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace specd {
namespace {

constexpr uint16_t kNoDecomposition = UINT16_MAX;

// Vowels and final consonants of Hangul combine with the letter before them but are not marks.
bool is_trailing_jamo(char32_t c) { return c >= 0x1160 && c <= 0x11FF; }

bool may_combine_with_the_one_before(char32_t c) {
  return (is_mark(category_of(c)) || is_trailing_jamo(c)) && !is_unknown_to_nfc(c);
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

}  // namespace

size_t nfc_unit_end(std::string_view text, size_t at) {
  const Utf8Step first = utf8_step(text, at);
  at += first.bytes;
  if (is_unknown_to_nfc(first.code_point)) return at;
  while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
    const Utf8Step next = utf8_step(text, at);
    if (!may_combine_with_the_one_before(next.code_point)) break;
    at += next.bytes;
  }
  return at;
}

void append_nfc(std::string_view unit, std::string& out) {
  const Utf8Step first = utf8_step(unit, 0);
  const auto single = static_cast<utf8proc_int32_t>(first.code_point);
  if (first.bytes == unit.size() &&
      (is_unknown_to_nfc(first.code_point) ||
       utf8proc_get_property(single)->decomp_seqindex == kNoDecomposition)) {
    out += unit;
    return;
  }
  std::vector<utf8proc_int32_t> characters;
  for (size_t at = 0; at < unit.size();) {
    const Utf8Step step = utf8_step(unit, at);
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has four
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(step.code_point), parts, 8,
        static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), nullptr);
    SPECD_CHECK(count > 0 && count <= 8, "libutf8proc cannot decompose a character");
    characters.insert(characters.end(), parts, parts + count);
    at += step.bytes;
  }
  for (auto begin = characters.begin(); begin != characters.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, characters.end(),
                                  [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  SPECD_CHECK(length >= 0, "libutf8proc cannot compose a text");
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(characters[static_cast<size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
  }
}

}  // namespace specd
