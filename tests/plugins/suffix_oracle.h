// Slow, plain suffix decoding, written from its definition: tries every match length and counts
// over the whole text. Tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/plugins/token_list.h"

namespace specd {

struct SuffixSettings {
  int max_spec_tokens = 16;
  float max_spec_factor = 1, max_spec_offset = 0, min_token_prob = 0.1f;
  int max_tree_depth = 64;
  int max_branches = 1;
};

struct SuffixDraft {
  TokenList token, parent;
  float score = 0;
};

// The text so far: that of the request, or the documents of a corpus.
class SuffixOracle {
 public:
  explicit SuffixOracle(std::vector<TokenList> texts) : texts_(std::move(texts)) {}

  // Replaces `best` by drafts with a better score; on equal scores the longer match stays.
  void improve(const TokenList& text, const SuffixSettings& set, int room, int eos,
               SuffixDraft& best) const {
    const int n = static_cast<int>(text.size());
    for (int match = std::min(n, set.max_tree_depth - 1); match >= 1; --match) {
      const TokenList suffix(text.end() - match, text.end());
      const double allowed = static_cast<double>(static_cast<float>(match) * set.max_spec_factor +
                                                 set.max_spec_offset) +
                             1e-6;
      const int budget = std::min(room, static_cast<int>(std::max(0.0, allowed)));
      const SuffixDraft draft = follow(suffix, set, budget, eos);
      if (draft.score > best.score) best = draft;
    }
  }

 private:
  struct Child {
    int32_t token;
    int count;
    int first, last;  // when it was seen, over all texts
  };

  int count(const TokenList& string) const {
    int times = 0;
    each(string, [&](std::size_t, std::size_t, int) { ++times; });
    return times;
  }

  template <class Body>
  void each(const TokenList& string, Body&& body) const {
    int when = 0;
    for (std::size_t t = 0; t < texts_.size(); ++t) {
      for (std::size_t end = string.size(); end <= texts_[t].size(); ++end, ++when) {
        if (std::equal(string.begin(), string.end(),
                       texts_[t].begin() + static_cast<long>(end - string.size()))) {
          body(t, end, when);
        }
      }
    }
  }

  // Most frequent first. Ties: the one that reached the count last or, among those seen once, the
  // first; all but the first of the list in order of their first appearance, youngest first.
  std::vector<Child> children(const TokenList& string, int most) const {
    std::vector<Child> list;
    each(string, [&](std::size_t t, std::size_t end, int when) {
      if (end == texts_[t].size()) return;
      const int32_t token = texts_[t][end];
      for (Child& child : list) {
        if (child.token != token) continue;
        ++child.count;
        child.last = when;
        return;
      }
      list.push_back({token, 1, when, when});
    });
    if (list.empty()) return list;
    const auto better = [](const Child& a, const Child& b) {
      if (a.count != b.count) return a.count > b.count;
      return a.count > 1 ? a.last > b.last : a.first < b.first;
    };
    const Child best = *std::min_element(list.begin(), list.end(), better);
    if (list.size() > 65) list.erase(list.begin() + 1, list.end() - 64);
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const Child& child) { return child.token == best.token; }),
               list.end());
    std::sort(list.begin(), list.end(), [](const Child& a, const Child& b) {
      return a.count != b.count ? a.count > b.count : a.first > b.first;
    });
    list.insert(list.begin(), best);
    if (static_cast<int>(list.size()) > most) list.resize(static_cast<std::size_t>(most));
    return list;
  }

  // The tokens after the first occurrence.
  TokenList after_first(const TokenList& string) const {
    TokenList rest;
    bool found = false;
    each(string, [&](std::size_t t, std::size_t end, int) {
      if (!found) rest.assign(texts_[t].begin() + static_cast<long>(end), texts_[t].end());
      found = true;
    });
    return rest;
  }

  struct Item {
    float prob;
    int32_t token;
    int parent;
    bool copying;
    TokenList string, rest;
  };

  // Chain and tree are the same search: with one branch, taking the most likely token first gives
  // the chain.
  SuffixDraft follow(const TokenList& suffix, const SuffixSettings& set, int budget,
                     int eos) const {
    SuffixDraft draft;
    std::vector<Item> open;  // in the order found
    const auto find_next = [&](const TokenList& string, bool copying, TokenList rest, float prob,
                               int parent) {
      const int times = copying ? 1 : count(string);
      if (times == 0) return;
      if (!copying && (static_cast<int>(string.size()) >= set.max_tree_depth || times == 1)) {
        copying = true;
        rest = after_first(string);
      }
      if (copying) {
        if (rest.empty()) return;
        open.push_back({prob, rest[0], parent, true, {}, TokenList(rest.begin() + 1, rest.end())});
        return;
      }
      for (const Child& child : children(string, set.max_branches)) {
        const float share = static_cast<float>(child.count) / static_cast<float>(times);
        const float p = set.max_branches == 1
                            ? prob * share
                            : prob * static_cast<float>(child.count) / static_cast<float>(times);
        if (p < set.min_token_prob) break;
        TokenList longer = string;
        longer.push_back(child.token);
        open.push_back({p, child.token, parent, false, longer, {}});
      }
    };
    find_next(suffix, false, {}, 1, -1);
    while (static_cast<int>(draft.token.size()) < budget && !open.empty()) {
      std::size_t next = 0;
      for (std::size_t i = 1; i < open.size(); ++i) {
        if (open[i].prob > open[next].prob) next = i;
      }
      const Item item = open[next];
      open.erase(open.begin() + static_cast<long>(next));
      draft.token.push_back(item.token);
      draft.parent.push_back(item.parent);
      draft.score += item.prob;
      if (item.token == eos) continue;
      find_next(item.string, item.copying, item.rest, item.prob,
                static_cast<int>(draft.token.size()) - 1);
    }
    return draft;
  }

  std::vector<TokenList> texts_;
};

}  // namespace specd
