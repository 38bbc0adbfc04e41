// Units of normalisation together against libutf8proc's own normalisation of whole texts.
#include "core/text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "core/base/utf8.h"
#include "core/text/unicode.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = nfc_unit_end(text, at);
    EXPECT_GT(end, at);
    append_nfc(text.substr(at, end - at), out);
    at = end;
  }
  return out;
}

std::string utf8(char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(count)};
}

std::string whole_nfc(const std::string& text) {
  utf8proc_uint8_t* made = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  std::string out = reinterpret_cast<const char*>(made);
  std::free(made);
  return out;
}

TEST(Nfc, units_in_turn_are_the_nfc_of_the_whole) {
  // Whatever composes, decomposes or is ordered, and some neighbours that do not.
  std::vector<std::string> characters = {"a", "<", "=", "\u4e2d", "\U0001F600", " "};
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || is_unknown_to_nfc(c)) continue;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    const bool jamo = c >= 0x1100 && c <= 0x11FF;
    if (property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX ||
        property->comb_index != UINT16_MAX || jamo || (c >= 0xAC00 && c <= 0xAC40)) {
      characters.push_back(utf8(c));
    }
  }
  ASSERT_GE(characters.size(), 3000u);
  std::mt19937 random(23);
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    for (auto left = 1 + random() % 7; left > 0; --left) {
      text += characters[random() % characters.size()];
    }
    ASSERT_EQ(nfc(text), whole_nfc(text));
  }
}

// The reference leaves characters alone that are newer than its tables.
TEST(Nfc, characters_that_the_reference_does_not_know_stand_apart) {
  EXPECT_EQ(nfc("a\u0345\u0301"), "\u00e1\u0345");
  EXPECT_EQ(nfc("a\u0345\u08D3\u0301"), "a\u0345\u08D3\u0301");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(Nfc, a_million_accents_on_one_letter_take_no_time) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301\u0323";  // out of order every time
  const auto start = CpuClock::now();
  const std::string normal = nfc(text);
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  EXPECT_LT(seconds.count(), 10.0);
  EXPECT_EQ(normal.substr(0, 3), "\u1ea1");  // a with a dot below, then the other dots
  EXPECT_EQ(normal.size(), text.size());
}

}  // namespace
}  // namespace specd
