// The longest suffix of a text that occurs in the text of an automaton.
#ifndef SPECD_SUFFIX_CURSOR_H
#define SPECD_SUFFIX_CURSOR_H

#include "suffix_automaton.h"

namespace specd::suffix {

class Cursor {
 public:
  // One lookup per token, amortized. The match stays shorter than the automaton's depth.
  void advance(const SuffixAutomaton& in, int32_t token) {
    uint32_t to = 0;
    while ((to = in.after(state_, token)) == 0) {
      if (state_ == SuffixAutomaton::kRoot) {
        length_ = 0;
        return;
      }
      state_ = in[state_].link;
      length_ = in[state_].length;
    }
    state_ = to;
    if (++length_ < in.depth()) return;
    length_ = in.depth() - 1;
    while (in[in[state_].link].length >= length_) state_ = in[state_].link;
  }

  uint32_t state() const { return state_; }
  uint32_t length() const { return length_; }

 private:
  uint32_t state_ = SuffixAutomaton::kRoot;
  uint32_t length_ = 0;
};

}  // namespace specd::suffix

#endif
