// Pool of n-gram patterns and what followed them, over one text or over those of all sequences.
#ifndef SPECD_PROMPT_LOOKUP_MATCH_POOL_H
#define SPECD_PROMPT_LOOKUP_MATCH_POOL_H

#include <algorithm>
#include <memory>

#include "text.h"

namespace specd::prompt_lookup {

// Semantics: pattern (1..M tokens) -> set of matches (1..P following tokens) in order of insertion.
// Inserting a match that is not in the set removes all shorter ones, then appends it; a look-up
// takes the oldest or the newest.
//
// What follows from that and is used here:
//  - Matches of a pattern never get longer along the set, so "remove the shorter ones" pops from
//  the
//    back. is_keep_all = false (replace the set when the new match is longer than the first) is
//    then the same thing: every match is shorter than the new one.
//  - A match of full length P is never removed, and inserting it again changes nothing. So every
//    window is inserted for good once, when its match is complete; only the last P - 1 windows of a
//    text, whose matches the end cuts, are inserted at every look-up.
//  - For the oldest, only the first match matters; membership is needed for the newest alone. The
//    match of a window that the end of its text cuts grows with the text, and is still the same
//    entry: its length follows from what of the text was taken in. So a window is inserted once,
//    when the first token of its match is known, and again only after another text has displaced a
//    match.
// A pattern and its match are neighbours in a text, so an entry is a place in a text, no copy.
class MatchPool {
 public:
  static constexpr uint32_t kLongestPattern = 16;
  static constexpr uint32_t kLongestMatch = 64;

  struct Options {
    uint32_t max_match;    // P
    uint32_t max_pattern;  // M
    bool oldest;
    uint64_t max_tokens;  // taken in before the pool is emptied; 0 = no bound
  };
  // One text's standing in the pool.
  struct Reader {
    uint32_t text = 0;                        // index in texts_
    uint64_t generation = 0;                  // of the pool when the text was registered
    uint32_t next[kLongestPattern + 1] = {};  // by pattern size: first window not yet complete
    // By pattern size: bit i is set when window next + i needs no insertion, because the oldest
    // match of its pattern has full length or is its own.
    uint64_t settled[kLongestPattern + 1] = {};
    uint64_t displaced = 0;  // the pool's, when the text was last taken in
  };
  struct Match {
    const int32_t* tokens = nullptr;
    uint32_t size = 0;
  };

  MatchPool(const sdk::HostAllocator<int32_t>& memory, const Options& options)
      : options_(options), patterns_(memory), sets_(memory), nodes_(memory) {}

  // Takes in what was appended to the text. For the newest that is the windows whose matches have
  // become complete; the cut ones follow with the look-up.
  void take_in(const GramHasher& hasher, const std::shared_ptr<const Text>& text, Reader& reader) {
    take_complete(hasher, text, reader);
    if (options_.oldest) take_cut(hasher, text->size(), reader);
  }

  // Looks the end of the text up.
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

  // Forgets everything and gives the memory back.
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
  // `size` tokens at `from` of a text, and the `match` tokens after them when it was inserted.
  struct Gram {
    uint32_t text;
    uint32_t from;
    uint32_t size;  // 0 = free
    uint32_t match;
  };
  struct Pattern {
    Gram gram;  // the pattern with its oldest match
    uint32_t tag;
    uint32_t newest;  // index in nodes_, when the newest is wanted
  };
  struct Node {
    Gram gram;
    uint32_t older;  // index of the match before it in the set, or kNone
  };
  struct Source {
    std::shared_ptr<const Text> text;
    uint32_t taken;  // tokens of it
  };
  static constexpr uint32_t kNone = 0xffffffffu;
  static constexpr uint32_t kRemoved = 0xfffffffeu;

  const int32_t* tokens(const Gram& gram) const {
    return texts_[gram.text].text->data() + gram.from;
  }

  // Length of the match by now; for the oldest.
  uint32_t match_of(const Gram& gram) const {
    if (gram.match == options_.max_match) return gram.match;
    return std::min(options_.max_match, texts_[gram.text].taken - gram.from - gram.size);
  }

  // Of patterns that end a text of n tokens and have been followed by one.
  uint32_t longest_pattern(uint32_t n) const {
    return n < 2 ? 0 : std::min(options_.max_pattern, n - 1);
  }

  // Inserts the windows whose matches have become complete.
  void take_complete(const GramHasher& hasher, const std::shared_ptr<const Text>& text,
                     Reader& reader) {
    const uint32_t n = text->size();
    if (options_.max_tokens != 0) {
      // Of a text longer than the pool only the end is taken in.
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

  // Inserts the windows whose matches the end of the text cuts: fewer than P <= 64 of a size.
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

  // Registers the text after a clear or for the first time. What it held before a clear stays
  // forgotten: taking all of it in again would cost a step its time.
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

  // The slot of sets_ that holds the node with the same pattern and match, or where it belongs.
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

  // All or nothing: what may throw comes first. True when inserting longer matches of this window
  // will change nothing either, while no other text displaces a match.
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
    // Slots only move in make_room(), and removing frees no slot before this one's place.
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
      // A live node's older neighbour is live: the set pops from the back only.
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
  uint64_t displaced_ = 0;  // times that a text took another's place as the oldest match
  std::vector<Source> texts_;
  HostVector<Pattern> patterns_;  // open addressing
  std::size_t pattern_count_ = 0;
  HostVector<uint32_t> sets_;  // open addressing over indices of nodes_
  std::size_t set_count_ = 0;  // used slots, removed ones included
  HostVector<Node> nodes_;
};

}  // namespace specd::prompt_lookup

#endif
