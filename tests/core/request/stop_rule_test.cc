#include "core/request/stop_rule.h"

#include <gtest/gtest.h>

#include <random>

namespace specd {
namespace {

// The slow way: every end in the whole text, first to last.
std::string cut_at_first_stop(const std::string& text, const std::vector<std::string>& stops,
                              bool* found) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) {
      *found = true;
      return text.substr(0, end - longest);
    }
  }
  *found = false;
  return text;
}

TEST(StopStrings, text_is_the_same_wherever_pieces_are_cut) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 20; i > 0; --i) text += "ab\n"[random() % 3];
    std::vector<std::string> stops;
    for (size_t i = random() % 3; i > 0; --i) {
      std::string stop;
      for (size_t k = 1 + random() % 4; k > 0; --k) stop += "ab\n"[random() % 3];
      stops.push_back(stop);
    }
    StopStrings rule(stops);
    std::string out;
    size_t at = 0;
    while (at < text.size() && !rule.found()) {
      const size_t n = 1 + random() % 3;
      out += rule.push(text.substr(at, n));
      at += n;
    }
    out += rule.flush();
    bool expect_found = false;
    const std::string expected = cut_at_first_stop(text, stops, &expect_found);
    ASSERT_EQ(out, expected) << "text '" << text << "'";
    ASSERT_EQ(rule.found(), expect_found);
  }
}

TEST(StopStrings, no_part_of_a_stop_string_is_ever_emitted) {
  StopStrings rule({"</end>"});
  EXPECT_EQ(rule.push("a<"), "a");
  EXPECT_EQ(rule.push("/en"), "");
  EXPECT_EQ(rule.push("x"), "</enx");
  EXPECT_EQ(rule.push("</e"), "");
  EXPECT_EQ(rule.push("nd>tail"), "");
  EXPECT_TRUE(rule.found());
  EXPECT_EQ(rule.flush(), "");
}

TEST(StopStrings, what_is_held_back_comes_at_the_end) {
  StopStrings rule({"stop"});
  EXPECT_EQ(rule.push("sto"), "");
  EXPECT_EQ(rule.flush(), "sto");
}

TEST(StopStrings, the_one_that_was_found_is_named) {
  StopStrings rule({"never", "ab", "b", "cab"});
  EXPECT_EQ(rule.which(), -1);
  EXPECT_EQ(rule.push("xa"), "x");
  EXPECT_EQ(rule.push("b"), "");
  EXPECT_EQ(rule.which(), 1) << "the longest of those that end together";
}

}  // namespace
}  // namespace specd
