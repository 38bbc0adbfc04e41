// A text on its way to tokens, and what every byte of it was in the text that the user gave.
#pragma once

#include <string>
#include <string_view>

namespace specd {

constexpr char kMarkFirst = 1;  // made from the very first character of the user's text
constexpr char kMarkPlain = 2;  // made from a place where no special token may be
constexpr char kMarkText = 4;   // and no other added token either

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
