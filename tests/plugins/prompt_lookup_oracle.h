// Slow, plain prompt lookup, written from the definitions of the two families. Tests only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/plugins/token_list.h"

namespace specd {

// The longest suffix of min..max tokens that occurs earlier, at its earliest occurrence; returns
// what follows.
inline TokenList lookup_oracle(const TokenList& text, int k, int min, int max, int max_positions) {
  const int n = static_cast<int>(text.size());
  const int room = std::min(k, max_positions - n);
  if (room <= 0) return {};
  for (int length = std::min(max, n); length >= min; --length) {
    for (int end = length; end < n; ++end) {
      if (std::equal(text.begin() + end - length, text.begin() + end, text.end() - length)) {
        return TokenList(text.begin() + end, text.begin() + std::min(end + room, n));
      }
    }
  }
  return {};
}

// The pool: pattern -> matches in order of insertion.
struct PoolOracle {
  int max_match, max_pattern;
  bool keep_all, oldest;
  std::map<TokenList, std::vector<TokenList>> pool;

  // `start` is state of the request, initially 0. `length_max` = prompt + new tokens allowed.
  TokenList step(const TokenList& prefix, int& start, int length_max) {
    const int n = static_cast<int>(prefix.size());
    const int room = length_max - 1 - n;
    if (room <= 0) return {};
    const TokenList seq(prefix.begin() + start, prefix.end());
    const int len = static_cast<int>(seq.size());
    for (int s = std::min(max_pattern, n - 1); s >= 1; --s) {
      for (int l = 0; l <= len - s - 1; ++l) {
        const TokenList pattern(seq.begin() + l, seq.begin() + l + s);
        const TokenList match(seq.begin() + l + s, seq.begin() + std::min(l + s + max_match, len));
        insert(pattern, match);
      }
    }
    TokenList draft;
    for (int s = std::min(max_pattern, n - 1); s >= 1; --s) {
      const auto it = pool.find(TokenList(prefix.end() - s, prefix.end()));
      if (it == pool.end()) continue;
      draft = oldest ? it->second.front() : it->second.back();
      if (static_cast<int>(draft.size()) > room) draft.resize(static_cast<std::size_t>(room));
      break;
    }
    start = std::max(0, n - (max_match + max_pattern - 1));
    return draft;
  }

 private:
  void insert(const TokenList& pattern, const TokenList& match) {
    auto& set = pool[pattern];
    if (set.empty() || (!keep_all && match.size() > set.front().size())) {
      set = {match};
      return;
    }
    if (std::find(set.begin(), set.end(), match) != set.end()) return;
    set.erase(std::remove_if(set.begin(), set.end(),
                             [&](const TokenList& m) { return m.size() < match.size(); }),
              set.end());
    set.push_back(match);
  }
};

}  // namespace specd
