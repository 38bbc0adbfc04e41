// Finds added tokens in a text as Hugging Face's AddedVocabulary does.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/siphash.h"
#include "core/base/text_range.h"

namespace specd {

constexpr size_t kAddedTokenBytesMax = 256;

class AddedTokenFinder {
 public:
  struct Token {
    int32_t id = 0;
    bool special = false;
    bool single_word = false;  // found only where no word character stands beside it
    bool lstrip = false;       // takes the white space before it
    bool rstrip = false;       // takes the white space after it
  };
  struct Segment {
    TextRange range;
    int32_t id;  // kText for text between tokens
  };
  static constexpr int32_t kText = -1;

  // Returns false when the text was added before. REQUIRES 1 to kAddedTokenBytesMax bytes of UTF-8.
  [[nodiscard]] bool add(std::string_view text, const Token& token);
  // Call after the last add() and before the first find().
  void finish();

  // Replaces `segments` by the tokens and the text between them. The leftmost token wins; of those
  // that begin at one place, the longest. With parse_special false, a special token and whatever
  // begins inside it stay text.
  //
  // `marks` has one mark for each byte of `text`. A special token never matches a byte with
  // kMarkPlain:
  // - a match partly inside a marked place does not count, so it cannot hide a token within it;
  // - a marked word character does not count as standing beside a single_word token.
  // So text in a marked place cannot break a special token outside it. kMarkText does the same for
  // the other added tokens; without it, one of them could begin in the marked place and hide a
  // token outside. O(text.size()).
  void find(std::string_view text, std::string_view marks, bool parse_special,
            std::vector<Segment>& segments) const;

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    Token token;
    size_t bytes;
  };
  // An Aho-Corasick automaton (1975) over the reversed tokens. It walks a text backwards and so
  // knows at every byte the longest token that begins there.
  class Automaton {
   public:
    bool has(std::string_view text) const;
    void add(std::string_view text, int32_t entry);
    void finish();
    bool empty() const { return edges_.empty(); }
    // Writes, for each byte of `block`, the entry of the longest token that begins there, or kNone.
    // A token that covers both a byte with `mark` and one without it does not count.
    void walk(std::string_view text, std::string_view marks, char mark, TextRange block,
              std::vector<int32_t>& longest) const;

   private:
    struct Node {
      uint32_t fail = 0;        // the longest proper suffix of its text that is a node too
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
