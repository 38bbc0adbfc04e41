#include "core/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"
#include "core/text/source_text.h"
#include "core/text/unicode.h"

namespace specd {
namespace {

// Bytes that an automaton walks at a time.
constexpr size_t kBlockBytes = 4096;

uint64_t edge_key(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

// The first byte of the character that ends at `end`. REQUIRES end > 0
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

// ---- the automaton ---------------------------------------------------------------------------

const uint32_t* AddedTokenFinder::Automaton::edge(uint32_t node, char byte) const {
  const auto found = edges_.find(edge_key(node, byte));
  return found == edges_.end() ? nullptr : &found->second;
}

bool AddedTokenFinder::Automaton::has(std::string_view text) const {
  uint32_t node = 0;
  for (size_t i = text.size(); i-- > 0;) {
    const uint32_t* const next = edge(node, text[i]);
    if (next == nullptr) return false;
    node = *next;
  }
  return nodes_[node].longest != kNone;
}

void AddedTokenFinder::Automaton::add(std::string_view text, int32_t entry) {
  uint32_t node = 0;
  leaves_root_[static_cast<unsigned char>(text.back())] = true;
  for (size_t i = text.size(); i-- > 0;) {
    const auto [next, added] =
        edges_.try_emplace(edge_key(node, text[i]), static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = next->second;
  }
  nodes_[node].longest = entry;
}

void AddedTokenFinder::Automaton::finish() {
  struct Child {
    uint32_t parent;
    char byte;
  };
  std::vector<Child> children(nodes_.size());
  for (const auto& [key, node] : edges_) {
    children[node] = {static_cast<uint32_t>(key >> 8), static_cast<char>(key & 0xFF)};
  }
  // A node's fail link needs only nodes nearer to the root, so go level by level. A parent has a
  // smaller number than its children.
  std::array<std::vector<uint32_t>, kAddedTokenBytesMax + 1> by_depth;
  std::vector<uint16_t> depths(nodes_.size());
  for (uint32_t node = 1; node < nodes_.size(); ++node) {
    depths[node] = static_cast<uint16_t>(depths[children[node].parent] + 1);
    by_depth[depths[node]].push_back(node);
  }
  for (const std::vector<uint32_t>& level : by_depth) {
    for (const uint32_t node : level) {
      const auto [parent, byte] = children[node];
      uint32_t fail = 0;
      for (uint32_t up = parent; up != 0 && fail == 0;) {
        up = nodes_[up].fail;
        if (const uint32_t* const next = edge(up, byte)) fail = *next;
      }
      nodes_[node].fail = fail;
      if (nodes_[node].longest == kNone) nodes_[node].longest = nodes_[fail].longest;
    }
  }
}

void AddedTokenFinder::Automaton::walk(std::string_view text, std::string_view marks, char mark,
                                       TextRange block, std::vector<int32_t>& longest) const {
  longest.assign(block.end - block.begin, kNone);
  if (empty()) return;
  // No token that begins in the block ends after this.
  const size_t end = std::min(text.size(), block.end + kAddedTokenBytesMax);
  uint32_t node = 0;
  char here = 0;
  for (size_t i = end; i-- > block.begin;) {
    const char there = std::exchange(here, static_cast<char>(marks[i] & mark));
    if (here != there) node = 0;
    if (node == 0 && !leaves_root_[static_cast<unsigned char>(text[i])]) continue;
    const uint32_t* next = edge(node, text[i]);
    while (next == nullptr && node != 0) {
      node = nodes_[node].fail;
      next = edge(node, text[i]);
    }
    node = next == nullptr ? 0 : *next;
    if (i < block.end) longest[i - block.begin] = nodes_[node].longest;
  }
}

// ---- the finder ------------------------------------------------------------------------------

bool AddedTokenFinder::add(std::string_view text, const Token& token) {
  if (special_.has(text) || other_.has(text)) return false;
  (token.special ? special_ : other_).add(text, static_cast<int32_t>(entries_.size()));
  entries_.push_back({token, text.size()});
  return true;
}

void AddedTokenFinder::finish() {
  special_.finish();
  other_.finish();
}

bool AddedTokenFinder::is_taken(const Token& token, std::string_view text, std::string_view marks,
                                TextRange match, bool parse_special) const {
  if (token.special && !parse_special) return false;
  const char hides = token.special ? kMarkPlain : kMarkText;
  const auto hidden = [&](size_t at) { return (marks[at] & hides) != 0; };
  if (hidden(match.begin)) return false;  // then the whole match is: see Automaton::walk
  if (!token.single_word) return true;
  return !(word_before(text, match.begin) && !hidden(match.begin - 1)) &&
         !(word_after(text, match.end) && !hidden(match.end));
}

void AddedTokenFinder::find(std::string_view text, std::string_view marks, bool parse_special,
                            std::vector<Segment>& segments) const {
  segments.clear();
  size_t text_begin = 0;       // where the text since the last token begins
  size_t last_spaces_end = 0;  // the end of the last run of white space that was walked
  TextRange block{0, 0};
  std::vector<int32_t> special;  // the longest token at each byte of the block
  std::vector<int32_t> other;
  for (size_t at = 0; at < text.size() && !entries_.empty();) {
    if (at >= block.end) {
      block = {at, std::min(text.size(), at + kBlockBytes)};
      special_.walk(text, marks, kMarkPlain, block, special);
      other_.walk(text, marks, kMarkText, block, other);
    }
    const auto bytes_of = [&](int32_t entry) {
      return entry == kNone ? 0 : entries_[static_cast<size_t>(entry)].bytes;
    };
    const int32_t a = special[at - block.begin];
    const int32_t b = other[at - block.begin];
    const int32_t found = bytes_of(a) > bytes_of(b) ? a : b;
    if (found == kNone) {
      ++at;
      continue;
    }
    const Token& token = entries_[static_cast<size_t>(found)].token;
    size_t end = at + bytes_of(found);
    const size_t next = end;
    if (is_taken(token, text, marks, {at, end}, parse_special)) {
      // Neighbouring tokens may strip the same white space. Do the reference's arithmetic, which
      // drops a token that is left without text.
      size_t begin = at;
      if (token.lstrip) begin = std::max(spaces_begin(text, begin, text_begin), text_begin);
      if (token.rstrip) {
        if (end >= last_spaces_end) last_spaces_end = spaces_end(text, end);
        end = last_spaces_end;
      }
      if (text_begin < begin) segments.push_back({{text_begin, begin}, kText});
      if (begin < end) segments.push_back({{begin, end}, token.id});
      text_begin = end;
    }
    at = next;
  }
  if (text_begin != text.size()) segments.push_back({{text_begin, text.size()}, kText});
}

}  // namespace specd
