// Selects a draft by match statistics: how often each continuation followed.
#ifndef SPECD_SUFFIX_DRAFT_SEARCH_H
#define SPECD_SUFFIX_DRAFT_SEARCH_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "settings.h"
#include "suffix_automaton.h"

namespace specd::suffix {

struct Draft {
  float score = 0;  // expected number of accepted tokens, if the future is drawn from the past
  uint32_t size = 0;
  std::array<int32_t, 64> token;
  std::array<int32_t, 64> parent;  // -1 = root
};

// Keeps the best of all drafts tried; on equal scores the first. A draft follows a match along
// the most frequent continuations. Each multiplies the probability of the draft by its share, and
// the draft goes on while that is at least min_token_prob. Strings longer than max_tree_depth
// tokens (match and draft) are not counted; there, and where a string occurs once, the draft
// follows the text.
//
// All strings of one class have the same continuations, and a longer match never has a smaller
// budget. So only the longest string of every class is tried.
class DraftSearch {
 public:
  // eos: -1 = none; drafts end with it. room <= 64.
  DraftSearch(const Settings& settings, int32_t eos, uint32_t room)
      : settings_(settings), eos_(eos), room_(room) {}

  // `match` < depth is the length of a string of `state`.
  void try_match(const SuffixAutomaton& in, uint32_t state, uint32_t match) {
    const uint32_t budget = settings_.budget(match, room_);
    const SuffixAutomaton::State& s = in[state];
    if (s.best_count == 0 || budget == 0) return;
    // No token of the draft can be more likely than the first. The factor allows for rounding.
    const float first = static_cast<float>(s.best_count) / static_cast<float>(s.count);
    const float bound = budget <= 1 ? first : first * static_cast<float>(budget) * 1.0001f;
    if (bound <= drafts_[best_].score || first < settings_.min_token_prob) return;
    Draft& draft = drafts_[1 - best_];
    draft.score = 0;
    draft.size = 0;
    if (settings_.trees()) {
      grow(in, state, match, budget, draft);
    } else {
      walk(in, state, match, budget, draft);
    }
    if (draft.score > drafts_[best_].score) best_ = 1 - best_;
  }

  const Draft& best() const { return drafts_[best_]; }

 private:
  // The position of a draft: in a state after a string of `length` tokens or, where strings are no
  // longer counted, in the text at `at`.
  struct Place {
    uint32_t state;
    uint32_t length;
    uint32_t at;
  };
  struct Branch {
    float prob;
    int32_t token;
    int32_t parent;
    Place place;
  };

  static bool counted(const SuffixAutomaton& in, uint32_t state, uint32_t length) {
    return length < in.depth() && in[state].count > 1;
  }

  void walk(const SuffixAutomaton& in, uint32_t state, uint32_t length, uint32_t budget,
            Draft& draft) const {
    float prob = 1;
    for (; draft.size < budget && counted(in, state, length); ++length) {
      const SuffixAutomaton::State& s = in[state];
      if (s.best_count == 0) return;
      prob *= static_cast<float>(s.best_count) / static_cast<float>(s.count);
      if (prob < settings_.min_token_prob) return;
      state = s.best;
      if (add(in.last_token_of(state), prob, draft)) return;
    }
    for (uint32_t at = in.first_end_of(state); draft.size < budget; ++at) {
      if (!may_copy(in, at) || add(in.token(at), prob, draft)) return;
    }
  }

  // Returns true when the draft ends with this token.
  bool add(int32_t token, float prob, Draft& draft) const {
    draft.token[draft.size++] = token;
    draft.score += prob;
    return token == eos_;
  }

  // Adds the most likely token first; among equally likely ones, the one found first.
  void grow(const SuffixAutomaton& in, uint32_t state, uint32_t length, uint32_t budget,
            Draft& draft) {
    next_ = end_ = 0;
    push_after(in, {state, length, 0}, 1, -1, budget);
    while (draft.size < budget && next_ < end_) {
      const Branch branch = branches_[next_++];
      draft.parent[draft.size] = branch.parent;
      if (add(branch.token, branch.prob, draft)) continue;
      push_after(in, branch.place, branch.prob, static_cast<int32_t>(draft.size) - 1,
                 budget - draft.size);
    }
  }

  static bool may_copy(const SuffixAutomaton& in, uint32_t at) {
    return at < in.size() && in.token(at) != SuffixAutomaton::kSeparator;
  }

  // Open branches are sorted in the order in which they are taken; only `left` of them are kept,
  // the number of nodes still to add.
  void push(const Branch& branch, uint32_t left) {
    uint32_t at = end_;
    while (at > next_ && branches_[at - 1].prob < branch.prob) --at;
    if (at - next_ >= left) return;
    end_ = std::min(end_ + 1, next_ + left);
    for (uint32_t i = end_ - 1; i > at; --i) branches_[i] = branches_[i - 1];
    branches_[at] = branch;
  }

  void push_after(const SuffixAutomaton& in, const Place& place, float prob, int32_t parent,
                  uint32_t left) {
    if (place.at != 0 || !counted(in, place.state, place.length)) {
      const uint32_t at = place.at != 0 ? place.at : in.first_end_of(place.state);
      if (may_copy(in, at)) push({prob, in.token(at), parent, {0, 0, at + 1}}, left);
      return;
    }
    std::array<uint32_t, 16> to;
    const uint32_t n = commonest_after(in, place.state, to);
    const float count = static_cast<float>(in[place.state].count);
    for (uint32_t i = 0; i < n; ++i) {
      const float p = prob * static_cast<float>(in[to[i]].count) / count;
      if (p < settings_.min_token_prob) return;
      push({p, in.last_token_of(to[i]), parent, {to[i], place.length + 1, 0}}, left);
    }
  }

  // The max_branches most frequent continuations; ties go to the automaton's best, then to the
  // younger. When there are very many, only the youngest and the oldest are considered.
  uint32_t commonest_after(const SuffixAutomaton& in, uint32_t state,
                           std::array<uint32_t, 16>& to) const {
    constexpr int kLooks = 64;
    const SuffixAutomaton::State& s = in[state];
    if (s.best_count == 0) return 0;
    uint32_t n = 0;
    to[n++] = s.best;
    const auto offer = [&](uint32_t target) {
      if (target == 0 || target == s.best) return;
      if (in.last_token_of(target) == SuffixAutomaton::kSeparator) return;
      uint32_t at = n;
      while (at > 1 && in[to[at - 1]].count < in[target].count) --at;
      if (at >= settings_.max_branches) return;
      if (n < settings_.max_branches) ++n;
      for (uint32_t i = n - 1; i > at; --i) to[i] = to[i - 1];
      to[at] = target;
    };
    int32_t token = s.youngest;
    for (int looks = 0; looks < kLooks && token != EdgeTable::kNoToken; ++looks) {
      const EdgeTable::Edge* edge = in.edges().find(state, token);
      offer(edge->target);
      token = edge->older;
    }
    offer(s.next);
    return n;
  }

  const Settings& settings_;
  const int32_t eos_;
  const uint32_t room_;
  Draft drafts_[2];
  uint32_t best_ = 0;
  std::array<Branch, 64> branches_;  // node i came from branch i; branches from `next_` on are open
  uint32_t next_ = 0, end_ = 0;
};

}  // namespace specd::suffix

#endif
