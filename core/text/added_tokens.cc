#include "core/text/added_tokens.h"

#include <algorithm>

#include "core/text/source_text.h"
#include "core/text/unicode.h"
#include "core/base/utf8.h"

namespace specd {
namespace {

uint64_t edge_key(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

// The begin of the character that ends at `end`. REQUIRES end > 0
size_t character_begin(std::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && is_word(utf8_step(text, character_begin(text, at)).code_point);
}
bool word_after(std::string_view text, size_t at) {
  return at < text.size() && is_word(utf8_step(text, at).code_point);
}

size_t spaces_begin(std::string_view text, size_t end, size_t least) {
  while (end > least) {
    const size_t begin = character_begin(text, end);
    if (!is_space(utf8_step(text, begin).code_point)) break;
    end = begin;
  }
  return end;
}
size_t spaces_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text, at);
    if (!is_space(step.code_point)) break;
    at += step.bytes;
  }
  return at;
}

}  // namespace

bool AddedTokenFinder::add(std::string_view text, const Token& token) {
  uint32_t node = 0;
  first_bytes_[static_cast<unsigned char>(text[0])] = true;
  for (const char c : text) {
    const auto [edge, added] = edges_.try_emplace(edge_key(node, c), nodes_);
    if (added) ++nodes_;
    node = edge->second;
  }
  return tokens_.emplace(node, token).second;
}

AddedTokenFinder::Verdict AddedTokenFinder::judge(const Token& token, std::string_view text,
                                                  std::string_view marks, TextRange match,
                                                  bool parse_special) const {
  const char hides = token.special ? kMarkPlain : kMarkText;
  const std::string_view touched = marks.substr(match.begin, match.end - match.begin);
  const auto plain = static_cast<size_t>(std::count_if(
      touched.begin(), touched.end(), [hides](char mark) { return (mark & hides) != 0; }));
  if (plain > 0 && plain < touched.size()) return Verdict::kUnseen;
  if (plain > 0 || (token.special && !parse_special)) return Verdict::kPassedOver;
  if (token.single_word && (word_before(text, match.begin) || word_after(text, match.end))) {
    return Verdict::kPassedOver;
  }
  return Verdict::kTaken;
}

const AddedTokenFinder::Token* AddedTokenFinder::longest(std::string_view text,
                                                         std::string_view marks, size_t at,
                                                         bool parse_special, size_t& end,
                                                         Verdict& verdict) const {
  if (!first_bytes_[static_cast<unsigned char>(text[at])]) return nullptr;
  const Token* best = nullptr;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge = edges_.find(edge_key(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    const auto found = tokens_.find(node);
    if (found == tokens_.end()) continue;
    const Verdict seen = judge(found->second, text, marks, {at, i + 1}, parse_special);
    if (seen == Verdict::kUnseen) continue;
    best = &found->second;
    end = i + 1;
    verdict = seen;
  }
  return best;
}

void AddedTokenFinder::find(std::string_view text, std::string_view marks, bool parse_special,
                            std::vector<Segment>& segments) const {
  segments.clear();
  size_t text_begin = 0;       // of the text that no token has taken
  size_t last_spaces_end = 0;  // of the run of white space that was looked at last
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    size_t end = at;
    Verdict verdict = Verdict::kUnseen;
    const Token* token = longest(text, marks, at, parse_special, end, verdict);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t next = end;
    if (verdict == Verdict::kTaken) {
      // Strips of neighbours may overlap; the reference's arithmetic is kept, and like it a token
      // without any text left is dropped.
      size_t begin = at;
      if (token->lstrip) begin = std::max(spaces_begin(text, begin, text_begin), text_begin);
      if (token->rstrip) {
        if (end >= last_spaces_end) last_spaces_end = spaces_end(text, end);
        end = last_spaces_end;
      }
      if (text_begin < begin) segments.push_back({{text_begin, begin}, kText});
      if (begin < end) segments.push_back({{begin, end}, token->id});
      text_begin = end;
    }
    at = next;
  }
  if (text_begin != text.size()) segments.push_back({{text_begin, text.size()}, kText});
}

}  // namespace specd
