// A text on its way to tokens, with marks that say where each byte came from in the user's text.
#pragma once

#include <string>
#include <string_view>

namespace specd {

constexpr char kMarkFirst = 1;  // from the very first character of the user's text
constexpr char kMarkPlain = 2;  // from a range in which no special token may match
constexpr char kMarkText = 4;   // from a range in which no other added token may match either

struct SourceText {
  std::string text;
  std::string marks;  // as long as `text`

  void append(std::string_view bytes, char mark) {
    text += bytes;
    marks.append(bytes.size(), mark);
  }
  void append(std::string_view bytes, std::string_view their_marks) {
    text += bytes;
    marks += their_marks;
  }
};

}  // namespace specd
