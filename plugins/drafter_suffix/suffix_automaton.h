// Suffix automaton of a growing text of tokens, with the number of occurrences of every
// short string.
#ifndef SPECD_SUFFIX_SUFFIX_AUTOMATON_H
#define SPECD_SUFFIX_SUFFIX_AUTOMATON_H

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "edge_table.h"

namespace specd::suffix {

// A state is a class of strings that end at the same positions of the text. All are suffixes of the
// longest one, and `link` is the class of the longest suffix that ends at more positions. See
// Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). Additions:
//
// - `count`, the number of occurrences, and `best`, the most frequent continuation, for every class
//   with a string of at most `depth` tokens. An append counts along the links of the new text's
//   end: usually a handful of classes, and never more than `depth`.
// - The continuation after the first occurrence is stored in the state (`next`); its token is in
//   the text. New text then needs no edge in the table.
//
// Among equally frequent continuations `best` is the one that reached the count last, but among
// those seen once the first. ArcticInference's suffix tree orders its children this way.
class SuffixAutomaton {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0xffffffffu;
  static constexpr int32_t kSeparator = -1;  // separates the parts of a text; never drafted

  struct State {
    uint32_t length;      // of the longest string
    uint32_t link;        // kNone for the root
    uint32_t count;       // occurrences
    uint32_t next;        // state after the first occurrence
    int32_t next_token;   // and its token, EdgeTable::kNoToken where the text ends
    uint32_t best;        // state after the most frequent continuation
    uint32_t best_count;  // its occurrences; 0 = no continuation
    // Token of the youngest edge, for continuations other than `next`; kNoToken for none. Each edge
    // names the next older one.
    int32_t youngest;
  };
  static_assert(sizeof(State) == 32, "two states a cache line");
  // A class whose strings end the text.
  struct Suffix {
    uint32_t state;
    uint32_t length;  // of its longest string
  };

  // depth >= 2.
  SuffixAutomaton(const HostAllocator& memory, uint64_t salt, uint32_t depth)
      : depth_(depth),
        text_(memory),
        states_(memory),
        ends_(memory),
        edges_(memory, salt),
        suffixes_(memory),
        before_(memory) {
    add_state({0, kNone, 0, 0, EdgeTable::kNoToken, 0, 0, EdgeTable::kNoToken},
              {0, EdgeTable::kNoToken});
    suffixes_.push_back({kRoot, 0});
  }

  // Makes room for the edges of this many tokens of typical text, so that the table need not move.
  void reserve(std::size_t tokens) { edges_.reserve(tokens + tokens / 4); }

  // Prefetch hints. Call expect() first, expect_next() some time later, both for a token that will
  // be appended; call expect_search() before a search for drafts.
  void expect(int32_t token) const { edges_.prefetch(kRoot, token); }
  void expect_next(int32_t token) const {
    const EdgeTable::Edge* edge = edges_.find(kRoot, token);
    if (edge != nullptr) __builtin_prefetch(&states_[edge->target]);
  }
  void expect_search() const {
    for (const Suffix& suffix : suffixes_) {
      const uint32_t best = states_[suffix.state].best;
      __builtin_prefetch(&states_[best]);
      __builtin_prefetch(&ends_[best]);
    }
  }

  void append(int32_t token) {
    for (const Suffix& suffix : suffixes_) {
      if (states_[suffix.state].next_token != token) edges_.prefetch(suffix.state, token);
    }
    text_.push_back(token);
    const uint32_t n = size();
    const uint32_t last = last_;
    const uint32_t now =
        add_state({n, kRoot, 1, 0, EdgeTable::kNoToken, 0, 0, EdgeTable::kNoToken}, {n, token});
    states_[last].next = now;
    states_[last].next_token = token;
    uint32_t from = states_[last].link;
    uint32_t known = 0;
    while (from != kNone && (known = after(from, token)) == 0) {
      edges_.insert(from, token, now, states_[from].youngest);
      states_[from].youngest = token;
      from = states_[from].link;
    }
    if (from != kNone) {
      states_[now].link =
          states_[known].length == states_[from].length + 1 ? known : split(from, token, known);
    }
    last_ = now;
    count(token);
  }

  uint32_t size() const { return text_.size(); }
  int32_t token(uint32_t at) const { return text_[at]; }
  uint32_t depth() const { return depth_; }
  const State& operator[](uint32_t state) const { return states_[state]; }
  // For all strings of the state; not for the root.
  int32_t last_token_of(uint32_t state) const { return ends_[state].last_token; }
  // End of the first occurrence: token(first_end_of(state)) follows it.
  uint32_t first_end_of(uint32_t state) const { return ends_[state].first; }

  // The state after `token`, or 0 when it never followed.
  uint32_t after(uint32_t state, int32_t token) const {
    const State& s = states_[state];
    if (s.next_token == token) return s.next;
    const EdgeTable::Edge* edge = edges_.find(state, token);
    return edge == nullptr ? 0 : edge->target;
  }

  // Classes that end the text and have strings of at most `depth` tokens, from long to short; the
  // root is last. The first may be the whole text, which occurs once.
  const HostVector<Suffix>& suffixes() const { return suffixes_; }

  const EdgeTable& edges() const { return edges_; }

 private:
  // Data that appending rarely needs.
  struct End {
    uint32_t first;
    int32_t last_token;
  };

  uint32_t add_state(const State& state, const End& end) {
    states_.push_back(state);
    ends_.push_back(end);
    return states_.size() - 1;
  }

  // Splits off the strings of `known` that now end the text; the longest of them is the longest
  // string of `from` plus `token`.
  uint32_t split(uint32_t from, int32_t token, uint32_t known) {
    State part = states_[known];
    part.length = states_[from].length + 1;
    const uint32_t made = add_state(part, {ends_[known].first, token});
    for (int32_t t = part.youngest; t != EdgeTable::kNoToken;) {
      const EdgeTable::Edge edge = *edges_.find(known, t);
      edges_.insert(made, t, edge.target, edge.older);
      t = edge.older;
    }
    states_[known].link = made;
    // The class may be one of those that ended the text so far.
    for (std::size_t i = 0; i < suffixes_.size(); ++i) {
      if (suffixes_[i].state != known) continue;
      suffixes_.insert(suffixes_.begin() + static_cast<std::ptrdiff_t>(i) + 1, {made, part.length});
      break;
    }
    for (; from != kNone; from = states_[from].link) {
      State& s = states_[from];
      if (s.next_token == token) {
        if (s.next != known) break;
        s.next = made;
      } else {
        EdgeTable::Edge* edge = edges_.find(from, token);
        if (edge->target != known) break;
        edge->target = made;
      }
      if (s.best == known) s.best = made;
    }
    return made;
  }

  // Counts one more occurrence of every suffix of at most `depth` tokens.
  void count(int32_t token) {
    before_.swap(suffixes_);
    suffixes_.clear();
    uint32_t at = last_;
    if (states_[states_[at].link].length >= depth_) {
      at = after(before_[0].state, token);
      while (states_[states_[at].link].length >= depth_) at = states_[at].link;
    }
    for (; at != kNone; at = states_[at].link) {
      State& s = states_[at];
      if (at != last_) ++s.count;
      suffixes_.push_back({at, s.length});
    }
    if (token == kSeparator) return;
    // Suffix `a` plus the token is in suffix `b`.
    std::size_t b = 0;
    for (std::size_t a = 0; a < before_.size(); ++a) {
      if (a + 1 < before_.size() && before_[a + 1].length + 1 >= depth_) continue;
      const uint32_t length = std::min(before_[a].length, depth_ - 1) + 1;
      while (suffixes_[b + 1].length >= length) ++b;
      const uint32_t to = suffixes_[b].state;
      const uint32_t times = states_[to].count;
      State& s = states_[before_[a].state];
      if (times > s.best_count || (times == s.best_count && times > 1)) s.best = to;
      if (s.best == to) s.best_count = times;
    }
  }

  const uint32_t depth_;
  uint32_t last_ = kRoot;
  Chunks<int32_t> text_;
  Chunks<State> states_;
  Chunks<End> ends_;  // indexed by state
  EdgeTable edges_;
  HostVector<Suffix> suffixes_, before_;
};

}  // namespace specd::suffix

#endif
