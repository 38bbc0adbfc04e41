#include "core/base/words.h"

#include <gtest/gtest.h>

namespace specd {
namespace {

TEST(Words, the_nearest_is_a_typing_error_away_and_not_another_word) {
  EXPECT_EQ(nearest("threds", {"threads", "isa"}), "threads");
  EXPECT_EQ(nearest("htreads", {"threads", "isa"}), "threads");
  EXPECT_EQ(nearest("banana", {"threads", "isa"}), "");
  EXPECT_EQ(nearest("", {"threads"}), "");
  EXPECT_EQ(nearest("warning", {"warn", "debug"}), "warn");
  EXPECT_EQ(nearest(std::string(129, 'x'), {std::string(129, 'x')}), "");
}

TEST(Words, an_unknown_word_gets_a_suggestion_and_the_list) {
  EXPECT_EQ(did_you_mean("threds", {"threads", "isa"}), "; did you mean 'threads'?");
  EXPECT_EQ(did_you_mean("banana", {"threads"}), "");
  EXPECT_EQ(known_words("is", {"threads", "isa"}),
            "; did you mean 'isa'? known here: threads, isa");
  EXPECT_EQ(known_words("banana", {"threads", "isa"}), "; known here: threads, isa");
  EXPECT_EQ(known_words("x", {}), "; known here: none");
}

TEST(Words, lists_are_joined_for_messages_and_for_scripts) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"a"}), "a");
  EXPECT_EQ(joined({"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(joined({"", "b"}, "|"), "|b");
  EXPECT_EQ(joined_or({}), "");
  EXPECT_EQ(joined_or({"a"}), "a");
  EXPECT_EQ(joined_or({"a", "b"}), "a or b");
  EXPECT_EQ(joined_or({"a", "b", "c"}), "a, b or c");
}

}  // namespace
}  // namespace specd
