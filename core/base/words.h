// Lists of words in messages, and the word that was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace specd {

// The candidate nearest to `word` by edit distance, or one of which either is the beginning of the
// other; "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean 'x'?", or "" when no candidate is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// The text after "unknown key": "; did you mean 'b'? known here: a, b, c".
std::string known_words(std::string_view word, const std::vector<std::string>& known);

// "a, b, c"
std::string joined(const std::vector<std::string>& words, std::string_view between = ", ");

// "a, b or c"
std::string joined_or(const std::vector<std::string>& words);

}  // namespace specd
