// A pool of n-gram patterns with the tokens that followed them, over one text or the texts of
// all sequences.
#ifndef SPECD_PROMPT_LOOKUP_MATCH_POOL_H
#define SPECD_PROMPT_LOOKUP_MATCH_POOL_H

#include <algorithm>
#include <memory>

#include "text.h"

namespace specd::prompt_lookup {

// Semantics: pattern (1..M tokens) -> set of matches (1..P following tokens) in order of insertion.
// Inserting a match that is not in the set removes all shorter ones, then appends it. A lookup
// returns the oldest or the newest match.
//
// Consequences that this implementation relies on:
// - Matches of a pattern never get longer along the set, so "remove the shorter ones" pops from the
//   back. is_keep_all = false (replace the set when the new match is longer than the first) is then
//   equivalent: every match is shorter than the new one.
// - A match of full length P is never removed, and inserting it again changes nothing. So every
//   window is inserted permanently once its match is complete; only the last P - 1 windows of a
//   text, whose matches are cut by its end, are inserted at every lookup.
// - For the oldest, only the first match matters; set membership is needed only for the newest. The
//   match of a window cut by the end of its text grows with the text and stays the same entry: its
//   length follows from how much of the text was taken in. So a window is inserted once, when the
//   first token of its match is known, and again only after another text has displaced a match.
// A pattern and its match are adjacent in a text, so an entry is a position in a text, not a copy.
class MatchPool {
 public:
  static constexpr uint32_t kLongestPattern = 16;
  static constexpr uint32_t kLongestMatch = 64;

  struct Options {
    uint32_t max_match;    // P
    uint32_t max_pattern;  // M
    bool oldest;
    uint64_t max_tokens;  // limit after which the pool is cleared; 0 = none
  };
  // The progress of one text in the pool.
  struct Reader {
    uint32_t text = 0;                        // index in texts_
    uint64_t generation = 0;                  // the pool's generation when the text was registered
    uint32_t next[kLongestPattern + 1] = {};  // per pattern size: first incomplete window
    // Per pattern size: bit i is set when window next + i needs no insertion, because the oldest
    // match of its pattern has full length or is the window's.
    uint64_t settled[kLongestPattern + 1] = {};
    uint64_t displaced = 0;  // the pool's counter when the text was last taken in
  };
  struct Match {
    const int32_t* tokens = nullptr;
    uint32_t size = 0;
  };

  MatchPool(const sdk::HostAllocator<int32_t>& memory, const Options& options)
      : options_(options), patterns_(memory), sets_(memory), nodes_(memory) {}

  // Takes in the tokens appended to the text. For the newest these are the windows whose matches
  // have become complete; cut windows are inserted at the lookup.
  void take_in(const GramHasher& hasher, const std::shared_ptr<const Text>& text, Reader& reader) {
    take_complete(hasher, text, reader);
    if (options_.oldest) take_cut(hasher, text->size(), reader);
  }

  // Looks up the end of the text.
  Match look_up(const GramHasher& hasher, const std::shared_ptr<const Text>& text, Reader& reader) {
    const uint32_t n = text->size();
    if (!options_.oldest) {
      take_complete(hasher, text, reader);
      take_cut(hasher, n, reader);
    } else if (reader.generation != generation_) {
      take_in(hasher, text, reader);
    }
    if (patterns_.empty()) return {};
    for (uint32_t size = longest_pattern(n); size >= 1; --size) {
      const Gram suffix{reader.text, n - size, size, 0};
      const Pattern& pattern = find_pattern(hasher, suffix);
      if (pattern.gram.size == 0) continue;
      const Gram& hit = options_.oldest ? pattern.gram : nodes_[pattern.newest].gram;
      const uint32_t match = options_.oldest ? match_of(hit) : hit.match;
      return {texts_[hit.text].text->data() + hit.from + hit.size, match};
    }
    return {};
  }

  // Tokens that count against the limit.
  uint64_t taken() const { return taken_; }

  // Removes everything and releases the memory.
  void clear() {
    ++generation_;
    texts_.clear();
    HostVector<Pattern>(patterns_.get_allocator()).swap(patterns_);
    HostVector<uint32_t>(sets_.get_allocator()).swap(sets_);
    HostVector<Node>(nodes_.get_allocator()).swap(nodes_);
    pattern_count_ = set_count_ = 0;
    taken_ = 0;
  }

 private:
  // `size` tokens at `from` in a text, followed by a match of `match` tokens at insertion.
  struct Gram {
    uint32_t text;
    uint32_t from;
    uint32_t size;  // 0 = free
    uint32_t match;
  };
  struct Pattern {
    Gram gram;  // the pattern with its oldest match
    uint32_t tag;
    uint32_t newest;  // index in nodes_, when the newest is used
  };
  struct Node {
    Gram gram;
    uint32_t older;  // index of the previous match in the set, or kNone
  };
  struct Source {
    std::shared_ptr<const Text> text;
    uint32_t taken;  // number of its tokens taken in
  };
  static constexpr uint32_t kNone = 0xffffffffu;
  static constexpr uint32_t kRemoved = 0xfffffffeu;

  const int32_t* tokens(const Gram& gram) const {
    return texts_[gram.text].text->data() + gram.from;
  }

  // Current length of the match; for the oldest.
  uint32_t match_of(const Gram& gram) const {
    if (gram.match == options_.max_match) return gram.match;
    return std::min(options_.max_match, texts_[gram.text].taken - gram.from - gram.size);
  }

  // Longest pattern that fits in a text of n tokens and is followed by a token.
  uint32_t longest_pattern(uint32_t n) const {
    return n < 2 ? 0 : std::min(options_.max_pattern, n - 1);
  }

  // Inserts the windows whose matches have become complete.
  void take_complete(const GramHasher& hasher, const std::shared_ptr<const Text>& text,
                     Reader& reader) {
    const uint32_t n = text->size();
    if (options_.max_tokens != 0) {
      // Of a text longer than the pool, take in only the end.
      if (n - reader.next[1] > options_.max_tokens) {
        const uint32_t from = n - static_cast<uint32_t>(options_.max_tokens);
        for (uint32_t& next : reader.next) next = std::max(next, from);
        for (uint64_t& settled : reader.settled) settled = 0;
      }
      if (taken_ + (n - reader.next[1]) > options_.max_tokens) clear();
    }
    enter(text, reader);
    texts_[reader.text].taken = n;
    if (reader.displaced != displaced_) {
      for (uint64_t& settled : reader.settled) settled = 0;
    }
    for (uint32_t size = 1; size <= options_.max_pattern; ++size) {
      uint32_t& from = reader.next[size];
      for (; from + size + options_.max_match <= n; ++from) {
        if (size == 1) ++taken_;
        if ((reader.settled[size] & 1) == 0) {
          insert(hasher, {reader.text, from, size, options_.max_match});
        }
        reader.settled[size] >>= 1;
      }
    }
  }

  // Inserts the windows whose matches are cut by the end of the text: fewer than P <= 64 per size.
  void take_cut(const GramHasher& hasher, uint32_t n, Reader& reader) {
    for (uint32_t size = longest_pattern(n); size >= 1; --size) {
      uint64_t bit = 1;
      for (uint32_t from = reader.next[size]; from + size < n; ++from, bit <<= 1) {
        if ((reader.settled[size] & bit) != 0) continue;
        if (insert(hasher, {reader.text, from, size, n - from - size})) {
          reader.settled[size] |= bit;
        }
      }
    }
    reader.displaced = displaced_;
  }

  // Registers the text initially and after a clear. What it held before a clear is not taken in
  // again, because that would take too long in one step.
  void enter(const std::shared_ptr<const Text>& text, Reader& reader) {
    if (reader.generation == generation_) return;
    texts_.push_back({text, 0});
    reader.text = static_cast<uint32_t>(texts_.size() - 1);
    reader.generation = generation_;
    for (uint64_t& settled : reader.settled) settled = 0;
    taken_ += options_.max_match + options_.max_pattern;  // its cut windows count from the start
  }

  Pattern& find_pattern(const GramHasher& hasher, const Gram& gram) {
    const uint64_t hash = texts_[gram.text].text->hash(hasher, gram.from, gram.size);
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    const std::size_t mask = patterns_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      Pattern& pattern = patterns_[at];
      if (pattern.gram.size == 0) {
        pattern.tag = tag;
        return pattern;
      }
      if (pattern.tag == tag && pattern.gram.size == gram.size &&
          same_tokens(tokens(pattern.gram), tokens(gram), gram.size)) {
        return pattern;
      }
    }
  }

  // Returns the slot of sets_ with the node of the same pattern and match, or the slot where
  // it belongs.
  uint32_t& find_member(const GramHasher& hasher, const Gram& gram) {
    const uint64_t hash = GramHasher::mix(
        texts_[gram.text].text->hash(hasher, gram.from, gram.size + gram.match) + gram.size);
    const std::size_t mask = sets_.size() - 1;
    uint32_t* free = nullptr;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      uint32_t& slot = sets_[at];
      if (slot == kNone) return free != nullptr ? *free : slot;
      if (slot == kRemoved) {
        if (free == nullptr) free = &slot;
        continue;
      }
      const Gram& other = nodes_[slot].gram;
      if (other.size == gram.size && other.match == gram.match &&
          same_tokens(tokens(other), tokens(gram), gram.size + gram.match)) {
        return slot;
      }
    }
  }

  // All or nothing: everything that may throw comes first. Returns true when inserting longer
  // matches of this window cannot change anything until another text displaces a match.
  bool insert(const GramHasher& hasher, const Gram& gram) {
    make_room(hasher);
    Pattern& pattern = find_pattern(hasher, gram);
    const bool absent = pattern.gram.size == 0;
    if (options_.oldest) {
      if (absent) ++pattern_count_;
      if (absent || gram.match > match_of(pattern.gram)) {
        if (!absent && pattern.gram.text != gram.text) ++displaced_;
        pattern.gram = gram;
      }
      return match_of(pattern.gram) == options_.max_match ||
             (pattern.gram.text == gram.text && pattern.gram.from == gram.from);
    }
    uint32_t& member = find_member(hasher, gram);
    if (member < kRemoved) return false;  // in the set
    uint32_t older = absent ? kNone : pattern.newest;
    while (older != kNone && nodes_[older].gram.match < gram.match) {
      find_member(hasher, nodes_[older].gram) = kRemoved;
      older = nodes_[older].older;
    }
    nodes_.push_back({gram, older});
    // Slots move only in make_room(), and removal frees no slot before this position.
    uint32_t& place = find_member(hasher, gram);
    if (place == kNone) ++set_count_;
    place = static_cast<uint32_t>(nodes_.size() - 1);
    if (absent) ++pattern_count_;
    pattern.newest = place;
    pattern.gram = gram;
    return false;
  }

  void make_room(const GramHasher& hasher) {
    if ((pattern_count_ + 1) * 4 > patterns_.size() * 3) {
      HostVector<Pattern> old(patterns_.get_allocator());
      HostVector<Pattern> bigger(patterns_.get_allocator());
      bigger.assign(patterns_.empty() ? 256 : patterns_.size() * 2, Pattern{{0, 0, 0, 0}, 0, 0});
      old.swap(patterns_);
      patterns_.swap(bigger);
      for (const Pattern& pattern : old) {
        if (pattern.gram.size != 0) find_pattern(hasher, pattern.gram) = pattern;
      }
    }
    if (options_.oldest) return;
    if (nodes_.size() == nodes_.capacity()) nodes_.reserve(nodes_.size() * 2 + 64);
    if ((set_count_ + 1) * 4 > sets_.size() * 3) compact(hasher);
  }

  // Drops removed nodes and rebuilds the membership table with room to double.
  void compact(const GramHasher& hasher) {
    HostVector<Node> kept(nodes_.get_allocator());
    HostVector<uint32_t> renamed(sets_.get_allocator());
    renamed.assign(nodes_.size(), kNone);
    HostVector<uint32_t> order(sets_.get_allocator());
    std::size_t live = 0;
    for (const uint32_t slot : sets_) {
      if (slot < kRemoved) {
        renamed[slot] = 0;
        ++live;
      }
    }
    kept.reserve(live);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (renamed[i] == kNone) continue;
      renamed[i] = static_cast<uint32_t>(kept.size());
      // A live node's older neighbor is live, because the set pops only from the back.
      kept.push_back({nodes_[i].gram, nodes_[i].older == kNone ? kNone : renamed[nodes_[i].older]});
    }
    std::size_t size = 256;
    while (size < live * 4) size *= 2;
    HostVector<uint32_t> table(sets_.get_allocator());
    table.assign(size, kNone);
    nodes_.swap(kept);
    sets_.swap(table);
    for (Pattern& pattern : patterns_) {
      if (pattern.gram.size != 0) pattern.newest = renamed[pattern.newest];
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      find_member(hasher, nodes_[i].gram) = static_cast<uint32_t>(i);
    }
    set_count_ = live;
  }

  Options options_;
  uint64_t generation_ = 1;
  uint64_t taken_ = 0;
  uint64_t displaced_ = 0;  // number of times that another text's match became the oldest
  std::vector<Source> texts_;
  HostVector<Pattern> patterns_;  // open addressing
  std::size_t pattern_count_ = 0;
  HostVector<uint32_t> sets_;  // open addressing over indices of nodes_
  std::size_t set_count_ = 0;  // used slots, removed ones included
  HostVector<Node> nodes_;
};

}  // namespace specd::prompt_lookup

#endif
