// Finds added tokens in a text as Hugging Face's AddedVocabulary does.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/siphash.h"
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
  // Behind the last add(), before the first find().
  void finish();

  // Replaces `segments` by the tokens and the text between them: the longest token at the leftmost
  // place. With parse_special false a special token is passed over, and so is what begins inside.
  // `marks` are of the bytes of `text`: no special token is taken that touches a byte with
  // kMarkPlain. One that also touches others does not even hide the tokens inside it, and word
  // characters so marked do not stand beside a single word, so no text in such a place can break a
  // token outside by a special token. The same goes for all tokens and kMarkText: without it a
  // token that is not special may begin in such a place and hide one outside. O(text.size()).
  void find(std::string_view text, std::string_view marks, bool parse_special,
            std::vector<Segment>& segments) const;

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    Token token;
    size_t bytes;
  };
  // The tokens read from their ends, as an automaton of Aho and Corasick (1975): it walks a text
  // backwards and knows at every byte the longest token that begins there.
  class Automaton {
   public:
    bool has(std::string_view text) const;
    void add(std::string_view text, int32_t entry);
    void finish();
    bool empty() const { return edges_.empty(); }
    // The entry of the longest token that begins at each byte of `block`, or kNone; of no token
    // that touches both a byte with `mark` and one without.
    void walk(std::string_view text, std::string_view marks, char mark, TextRange block,
              std::vector<int32_t>& longest) const;

   private:
    struct Node {
      uint32_t fail = 0;        // the longest end of its text that is a node too
      int32_t longest = kNone;  // entry
    };
    const uint32_t* edge(uint32_t node, char byte) const;

    std::unordered_map<uint64_t, uint32_t, KeyedIntHash> edges_;  // node << 8 | byte -> node
    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::array<bool, 256> leaves_root_{};  // bytes
  };

  bool is_taken(const Token& token, std::string_view text, std::string_view marks, TextRange match,
                bool parse_special) const;

  std::vector<Entry> entries_;
  Automaton special_, other_;
};

}  // namespace specd
