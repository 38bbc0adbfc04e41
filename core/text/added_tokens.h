// Finds added tokens in a text as Hugging Face's AddedVocabulary does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/text_range.h"

namespace specd {

constexpr size_t kAddedTokenBytesMax = 256;

class AddedTokenFinder {
 public:
  struct Token {
    int32_t id = 0;
    bool special = false;
    bool single_word = false;  // not beside a word character
    bool lstrip = false;       // swallows the white space before it
    bool rstrip = false;       // and after it
  };
  struct Segment {
    TextRange range;
    int32_t id;  // kText for what is between tokens
  };
  static constexpr int32_t kText = -1;

  // False when the text is there already. REQUIRES 1 to kAddedTokenBytesMax bytes of UTF-8.
  [[nodiscard]] bool add(std::string_view text, const Token& token);

  // Replaces `segments` by the tokens and the text between them: the longest token at the leftmost
  // place. With parse_special false a special token is passed over, and so is what begins inside.
  // `marks` are of the bytes of `text`: no special token is taken that touches a byte with
  // kMarkPlain. One that also touches others does not even hide the tokens inside it, so no text in
  // such a place can break a token outside. O(text.size() * longest token).
  void find(std::string_view text, std::string_view marks, bool parse_special,
            std::vector<Segment>& segments) const;

 private:
  // Of a match that does not count.
  enum class Verdict { kTaken, kPassedOver, kUnseen };
  Verdict judge(const Token& token, std::string_view text, std::string_view marks, TextRange match,
                bool parse_special) const;
  // The longest token at `at` that is not kUnseen; null when there is none.
  const Token* longest(std::string_view text, std::string_view marks, size_t at, bool parse_special,
                       size_t& end, Verdict& verdict) const;

  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::unordered_map<uint32_t, Token> tokens_;    // of the nodes where one ends
  bool first_bytes_[256] = {};
  uint32_t nodes_ = 1;
};

}  // namespace specd
