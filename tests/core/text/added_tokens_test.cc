// What the goldens of tokenizer_kinds do not show of added tokens: plain marks, and time.
#include "core/text/added_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

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
  EXPECT_FALSE(finder.add("a>", {.id = 5, .special = true}));
  finder.finish();
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

TEST(AddedTokens, a_strangers_letters_do_not_stand_beside_a_single_word) {
  AddedTokenFinder finder;
  EXPECT_TRUE(finder.add("<a>", {.id = 1, .special = true, .single_word = true}));
  EXPECT_TRUE(finder.add("<b>", {.id = 2, .single_word = true}));
  finder.finish();
  // As in the reference where everything has one origin.
  EXPECT_EQ(found(finder, "x<a>", "...."), "-");
  EXPECT_EQ(found(finder, "<a>x", "...."), "-");
  EXPECT_EQ(found(finder, "x<b>", "...."), "-");
  EXPECT_EQ(found(finder, "x<b>", "pppp"), "-");
  // The template's token stands, whatever a message has beside it.
  EXPECT_EQ(found(finder, "x<a>x", "p...p"), "- 1 -");
  EXPECT_EQ(found(finder, "x<b>x", "t...t"), "- 2 -");
  EXPECT_EQ(found(finder, "\u00e4<a>\u00e4", "pp...pp"), "- 1 -");
  // The template's own letter counts, and so does a message's for a token that it may spell.
  EXPECT_EQ(found(finder, "x<a>x", "p...."), "-");
  EXPECT_EQ(found(finder, "x<b>x", "p...p"), "-");
}

// What find() says of itself, place by place and token by token.
std::string slowly_found(const std::vector<std::pair<std::string, Token>>& tokens,
                         const std::string& text, const std::string& plain) {
  std::string shown;
  bool in_text = false;
  for (size_t at = 0; at < text.size();) {
    const std::pair<std::string, Token>* best = nullptr;
    bool taken = false;
    for (const auto& each : tokens) {
      const std::string& word = each.first;
      const Token& token = each.second;
      if (text.compare(at, word.size(), word) != 0) continue;
      const std::string of = plain.substr(at, word.size());
      const auto hidden = static_cast<size_t>(std::count_if(
          of.begin(), of.end(), [&](char c) { return c == 't' || (c == 'p' && token.special); }));
      if (hidden > 0 && hidden < word.size()) continue;
      if (best != nullptr && best->first.size() >= word.size()) continue;
      best = &each;
      taken = hidden == 0;
    }
    const size_t bytes = best == nullptr ? 1 : best->first.size();
    if (taken) {
      shown += (shown.empty() ? "" : " ") + std::to_string(best->second.id);
    } else if (!in_text) {
      shown += shown.empty() ? "-" : " -";
    }
    in_text = !taken;
    at += bytes;
  }
  return shown;
}

TEST(AddedTokens, are_those_that_a_slow_search_finds) {
  std::mt19937 random(20260726);
  const auto word = [&](size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    AddedTokenFinder finder;
    std::vector<std::pair<std::string, Token>> tokens;
    for (int i = 0; i < 12; ++i) {
      const Token token{.id = i, .special = random() % 2 == 0};
      const std::string text = word(1 + random() % 6);
      if (finder.add(text, token)) tokens.emplace_back(text, token);
    }
    finder.finish();
    // Now and then longer than what is walked at once.
    const size_t bytes = round % 30 == 0 ? 10'000 : 60;
    const std::string text = word(bytes);
    std::string plain;
    while (plain.size() < bytes) plain.append(1 + random() % 8, "..pt"[random() % 4]);
    plain.resize(bytes);
    ASSERT_EQ(found(finder, text, plain), slowly_found(tokens, text, plain)) << text;
  }
}

TEST(AddedTokens, tokens_inside_of_each_other_take_linear_time) {
  const auto seconds = [](const AddedTokenFinder& finder, const std::string& text, char mark) {
    std::string marks(text.size(), 0);
    for (size_t i = 0; i < marks.size(); i += 2) marks[i] = mark;
    const auto start = CpuClock::now();
    std::vector<AddedTokenFinder::Segment> segments;
    finder.find(text, marks, true, segments);
    return std::chrono::duration<double>(CpuClock::now() - start).count();
  };
  const std::string text(4'000'000, 'a');
  AddedTokenFinder nearly;  // never there
  EXPECT_TRUE(nearly.add(std::string(255, 'a') + "b", {.id = 1}));
  EXPECT_TRUE(nearly.add("b" + std::string(255, 'a'), {.id = 2, .special = true}));
  nearly.finish();
  EXPECT_LT(seconds(nearly, text, 0), 1.0 * kSlowdown);
  AddedTokenFinder nested;
  for (int n = 2; n <= 256; ++n) {
    EXPECT_TRUE(nested.add(std::string(static_cast<size_t>(n), 'a'), {.id = n, .special = true}));
  }
  nested.finish();
  EXPECT_LT(seconds(nested, text, 0), 1.0 * kSlowdown);
  EXPECT_LT(seconds(nested, text, kMarkPlain), 1.0 * kSlowdown);
}

TEST(AddedTokens, strips_of_white_space_everywhere_take_linear_time) {
  AddedTokenFinder finder;
  EXPECT_TRUE(finder.add(" ", {.id = 1, .lstrip = true, .rstrip = true}));
  EXPECT_TRUE(finder.add("\t", {.id = 2, .rstrip = true}));
  EXPECT_TRUE(finder.add("\n", {.id = 3, .lstrip = true}));
  finder.finish();
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
