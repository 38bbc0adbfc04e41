// The two-dimensional window: guesses of future tokens, refined in every pass.
#ifndef SPECD_LOOKAHEAD_WINDOW_H
#define SPECD_LOOKAHEAD_WINDOW_H

#include <algorithm>
#include <cstddef>

#include "memory.h"

namespace specd::lookahead {

// Column w holds the tokens of levels 0, 1, ... at positions p + w, p + w + 1, ..., where p is the
// position of the root; level 0 of column 0 is the root. A pass asks the target for the token after
// the last level of every column. While fewer than N - 1 levels are filled, the answers form the
// next level and the first column is dropped. After that, the answers complete an n-gram in every
// column, and the columns lose their first level.
//
// In the tree the level-0 tokens are a chain below the root, and the other levels of a column hang
// below its level-0 token. A cell thus has its position as depth, and attends to the root, the
// level-0 tokens of the columns up to its own, and its column: the mask of LADE.
class Window {
 public:
  Window(const sdk::HostAllocator<int32_t>& memory, uint32_t width, uint32_t n)
      : width_(width), n_(n), cells_(memory) {}

  // Sets level 0 to W + N - 3 tokens of the text, chosen by a function of index and length only.
  void start(const int32_t* text, std::size_t size) {
    if (!cells_.empty()) return;
    cells_.resize(std::size_t{columns()} * n_);
    for (uint32_t w = 1; w < columns(); ++w) {
      column(w)[0] = text[splitmix64(uint64_t{size} << 32 | (w - 1)) % size];
    }
  }

  bool filling() const { return filled_ < n_ - 1; }
  uint32_t columns() const { return width_ + n_ - 1 - filled_; }
  uint32_t nodes() const { return columns() * filled_ - 1; }
  // Tokens until an n-gram of the next pass can be tested, one per pass, plus the two that the
  // test concerns.
  uint64_t tokens_to_pay() const { return uint64_t{n_} - 1 - filled_ + 3; }
  const int32_t* ngram(uint32_t w) const { return cells_.data() + std::size_t{w} * n_; }

  // Pushes the whole window; the caller has checked that it fits.
  void push(sdk::Proposal& out) {
    column(0)[0] = out.root_token();
    const int32_t flags0 = filled_ == 1 ? kLast : SPECD_NODE_PROBE;
    const int32_t level0 = out.size() - 1;  // node index of column 0, if the root were a node
    for (uint32_t w = 1; w < columns(); ++w) {
      out.push(ngram(w)[0], w == 1 ? -1 : level0 + static_cast<int32_t>(w) - 1, flags0);
    }
    last_level_ = level0;
    for (uint32_t level = 1; level < filled_; ++level) {
      const int32_t above = last_level_;
      last_level_ = out.size();
      for (uint32_t w = 0; w < columns(); ++w) {
        const int32_t parent = level == 1 && w == 0 ? -1 : above + static_cast<int32_t>(w);
        out.push(ngram(w)[level], parent, level + 1 == filled_ ? kLast : SPECD_NODE_PROBE);
      }
    }
    in_flight_ = true;
  }

  // Takes the answers to the last push(), once. Returns true when all are present; every column
  // then has one more cell.
  bool answered(const sdk::Rows& rows) {
    if (!in_flight_) return false;
    in_flight_ = false;
    for (uint32_t w = 0; w < columns(); ++w) {
      // Level 0 of column 0 is the root; its answer is the committed token.
      if (w == 0 && filled_ == 1) {
        column(w)[filled_] = rows[0].next_token;
        continue;
      }
      const int32_t* answer = rows.top(last_level_ + static_cast<int32_t>(w));
      if (answer == nullptr) return false;
      column(w)[filled_] = *answer;
    }
    return true;
  }

  // Moves the window by one token; call after answered().
  void advance() {
    if (filling()) {
      ++filled_;
      std::copy(cells_.begin() + n_, cells_.end(), cells_.begin());
    } else {
      for (uint32_t w = 0; w < columns(); ++w) std::copy_n(column(w) + 1, n_ - 1, column(w));
    }
  }

 private:
  static constexpr int32_t kLast = SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP;

  int32_t* column(uint32_t w) { return cells_.data() + std::size_t{w} * n_; }

  uint32_t width_, n_;
  uint32_t filled_ = 1;  // levels
  // column w at w * n, its last cell for the answer; empty: not started
  HostVector<int32_t> cells_;
  bool in_flight_ = false;
  int32_t last_level_ = 0;  // node of the last level of column 0
};

}  // namespace specd::lookahead

#endif
