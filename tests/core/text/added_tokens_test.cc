// What the goldens of tokenizer_kinds do not show of added tokens: plain marks, and time.
#include "core/text/added_tokens.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/text/source_text.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

using Token = AddedTokenFinder::Token;

// "-" for text, else the id, of every segment: "- 1 -".
std::string found(const AddedTokenFinder& finder, const std::string& text, const std::string& plain,
                  bool parse_special = true) {
  std::string marks;
  for (const char c : plain) {
    marks += c == 'p' ? kMarkPlain : c == 't' ? static_cast<char>(kMarkPlain | kMarkText) : char{0};
  }
  std::vector<AddedTokenFinder::Segment> segments;
  finder.find(text, marks, parse_special, segments);
  std::string shown;
  size_t end = 0;
  for (const auto& segment : segments) {
    EXPECT_EQ(segment.range.begin, end);
    EXPECT_LT(segment.range.begin, segment.range.end);
    end = segment.range.end;
    shown += (shown.empty() ? "" : " ") +
             (segment.id == AddedTokenFinder::kText ? "-" : std::to_string(segment.id));
  }
  EXPECT_EQ(end, text.size());
  return shown;
}

AddedTokenFinder some_tokens() {
  AddedTokenFinder finder;
  EXPECT_TRUE(finder.add("<a>", {.id = 1, .special = true}));
  EXPECT_TRUE(finder.add("x<a>", {.id = 2, .special = true}));
  EXPECT_TRUE(finder.add("<a><b>", {.id = 3, .special = true}));
  EXPECT_TRUE(finder.add("a>", {.id = 4}));
  EXPECT_FALSE(finder.add("a>", {.id = 5}));
  return finder;
}

TEST(AddedTokens, the_longest_at_the_leftmost_place_wins) {
  const AddedTokenFinder finder = some_tokens();
  EXPECT_EQ(found(finder, "yx<a><b>", "........"), "- 2 -");
  EXPECT_EQ(found(finder, "y<a><b>", "......."), "- 3");
  EXPECT_EQ(found(finder, "ya><a>", "......"), "- 4 1");
}

TEST(AddedTokens, a_special_token_in_a_plain_range_is_passed_over_as_without_parsing) {
  const AddedTokenFinder finder = some_tokens();
  EXPECT_EQ(found(finder, "y<a>a>", "......", false), "- 4");
  EXPECT_EQ(found(finder, "y<a>a>", "pppppp"), "- 4");
  EXPECT_EQ(found(finder, "<a><a>", "ppp..."), "- 1");
  EXPECT_EQ(found(finder, "<a><a>", "...ppp"), "1 -");
}

TEST(AddedTokens, no_token_at_all_is_found_where_all_are_hidden) {
  const AddedTokenFinder finder = some_tokens();
  EXPECT_EQ(found(finder, "y<a>a>", "tttttt"), "-");
  EXPECT_EQ(found(finder, "y<a>a>", "tttt.."), "- 4");
  EXPECT_EQ(found(finder, "a>a>", "..t."), "4 -");
}

TEST(AddedTokens, a_strangers_text_cannot_break_the_tokens_beside_it) {
  const AddedTokenFinder finder = some_tokens();
  EXPECT_EQ(found(finder, "x<a>", "p..."), "- 1");      // not the longer x<a>
  EXPECT_EQ(found(finder, "<a><b>", "...ppp"), "1 -");  // not the longer <a><b>
  EXPECT_EQ(found(finder, "<a>", "p.."), "- 4");        // nothing special is left
  EXPECT_EQ(found(finder, "<a>", "..p"), "- 4");
  EXPECT_EQ(found(finder, "<<a>", "p..."), "- 1");
}

TEST(AddedTokens, strips_of_white_space_everywhere_take_linear_time) {
  AddedTokenFinder finder;
  EXPECT_TRUE(finder.add(" ", {.id = 1, .lstrip = true, .rstrip = true}));
  EXPECT_TRUE(finder.add("\t", {.id = 2, .rstrip = true}));
  EXPECT_TRUE(finder.add("\n", {.id = 3, .lstrip = true}));
  for (const std::string& text :
       {std::string(1'000'000, ' '), std::string(1'000'000, '\t'), std::string(1'000'000, '\n')}) {
    const auto start = CpuClock::now();
    std::vector<AddedTokenFinder::Segment> segments;
    finder.find(text, std::string(text.size(), 0), true, segments);
    const std::chrono::duration<double> seconds = CpuClock::now() - start;
    EXPECT_LT(seconds.count(), 10.0);
    EXPECT_FALSE(segments.empty());
  }
}

}  // namespace
}  // namespace specd
