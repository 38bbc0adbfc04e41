#include "core/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <memory>

namespace specd {
namespace {

using enum Category;
struct CategoryRange {
  char32_t first;
  char32_t last;
  Category of;
};
#include "core/text/unicode_tables.inc"

constexpr std::string_view kNames[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                       "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                       "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"};

constexpr char32_t kEnd = 0x110000;
constexpr uint8_t kCategoryBits = 0x1F;
constexpr uint8_t kSpace = 0x20;
constexpr uint8_t kNumeric = 0x40;
constexpr uint8_t kWord = 0x80;

// One byte for each code point, built on first use: scanners ask for every character.
const uint8_t* facts() {
  static const std::unique_ptr<const uint8_t[]> table = [] {
    auto made = std::make_unique<uint8_t[]>(kEnd);
    std::fill_n(made.get(), kEnd, static_cast<uint8_t>(Cn));
    for (const CategoryRange& range : kCategories) {
      auto fact = static_cast<uint8_t>(range.of);
      if (is_number(range.of)) fact |= kNumeric;
      if (is_letter(range.of) || is_mark(range.of) || range.of == Nd || range.of == Nl ||
          range.of == Pc) {
        fact |= kWord;
      }
      std::fill(made.get() + range.first, made.get() + range.last + 1, fact);
    }
    const auto flip = [&](const auto& ranges, uint8_t bit) {
      for (const CodePointRange& range : ranges) {
        for (char32_t c = range.first; c <= range.last; ++c) made[c] ^= bit;
      }
    };
    flip(kSpaces, kSpace);
    flip(kNumericUnlikeCategory, kNumeric);
    flip(kWordUnlikeCategory, kWord);
    return std::unique_ptr<const uint8_t[]>(std::move(made));
  }();
  return table.get();
}

}  // namespace

Category category_of(char32_t c) { return static_cast<Category>(facts()[c] & kCategoryBits); }
bool is_space(char32_t c) { return (facts()[c] & kSpace) != 0; }
bool is_numeric(char32_t c) { return (facts()[c] & kNumeric) != 0; }
bool is_word(char32_t c) { return (facts()[c] & kWord) != 0; }

bool is_unknown_to_nfc(char32_t c) {
  const CodePointRange* range =
      std::lower_bound(std::begin(kUnknownToNfc), std::end(kUnknownToNfc), c,
                       [](const CodePointRange& r, char32_t value) { return r.last < value; });
  return range != std::end(kUnknownToNfc) && range->first <= c;
}

std::vector<CodePointRange> category_ranges(std::string_view name) {
  std::vector<CodePointRange> ranges;
  const auto in_name = [&](Category c) {
    const std::string_view full = kNames[static_cast<size_t>(c)];
    return name == full || (name.size() == 1 && name[0] == full[0]);
  };
  const auto add = [&](char32_t first, char32_t last) {
    if (!ranges.empty() && ranges.back().last + 1 == first) {
      ranges.back().last = last;
    } else {
      ranges.push_back({first, last});
    }
  };
  char32_t next = 0;
  for (const CategoryRange& range : kCategories) {
    if (in_name(Cn) && next < range.first) add(next, range.first - 1);
    if (in_name(range.of)) add(range.first, range.last);
    next = range.last + 1;
  }
  if (in_name(Cn) && next < kEnd) add(next, kEnd - 1);
  return ranges;
}

std::vector<CodePointRange> space_ranges() { return {std::begin(kSpaces), std::end(kSpaces)}; }

}  // namespace specd
