// Text with repeats at every scale: random tokens of a small alphabet, and copies of earlier parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/plugins/token_list.h"

namespace specd {

inline TokenList next_piece(std::mt19937& random, const TokenList& text, int alphabet) {
  TokenList piece;
  if (text.size() > 4 && random() % 2 == 0) {
    const std::size_t from = random() % text.size();
    const std::size_t n = 1 + random() % std::min<std::size_t>(9, text.size() - from);
    piece.assign(text.begin() + static_cast<long>(from),
                 text.begin() + static_cast<long>(from + n));
  } else {
    for (unsigned i = 0; i <= random() % 4; ++i) {
      piece.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(alphabet)));
    }
  }
  return piece;
}

inline TokenList random_text(std::mt19937& random, int alphabet, std::size_t n) {
  TokenList text;
  while (text.size() < n) {
    for (const int32_t t : next_piece(random, text, alphabet)) text.push_back(t);
  }
  text.resize(n);
  return text;
}

}  // namespace specd
