// What the engines inside Hugging Face tokenizers know of a code point. Their Unicode versions
// differ from each other and from every library's, so the tables are asked from them
// (tests/reference/make_unicode_tables.py).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace specd {

// General categories, as \p{..} of the expression engine knows them. Groups are neighbours.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,  // letters
  Mn,
  Mc,
  Me,  // marks
  Nd,
  Nl,
  No,  // numbers
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,  // punctuation
  Sm,
  Sc,
  Sk,
  So,  // symbols
  Zs,
  Zl,
  Zp,  // separators
  Cc,
  Cf,
  Co,
  Cn,  // other; Cn: not assigned
};

Category category_of(char32_t c);
inline bool is_letter(Category c) { return c <= Category::Lo; }
inline bool is_mark(Category c) { return c >= Category::Mn && c <= Category::Me; }
inline bool is_number(Category c) { return c >= Category::Nd && c <= Category::No; }

bool is_space(char32_t c);    // white space: \s of expressions, lstrip and rstrip
bool is_numeric(char32_t c);  // of the pre-tokenizer Digits
bool is_word(char32_t c);     // of single_word
// True for characters that the reference's NFC, being older, leaves alone.
bool is_unknown_to_nfc(char32_t c);

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
};
// The sorted ranges of a category by its name of one or two letters ("L", "Lu"); empty when there
// is none of that name.
std::vector<CodePointRange> category_ranges(std::string_view name);
std::vector<CodePointRange> space_ranges();

}  // namespace specd
