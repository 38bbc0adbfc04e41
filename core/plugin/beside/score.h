// Compares proposals that nobody has verified with the text that was committed later: a proposal is accepted
// as far as a path of its tree is what follows its root. That is what a verifier accepts which compares with
// the draws of the target (verifier_match); one that judges by probability may accept other nodes.
//
// One thread. A proposal that is still undecided when its sequence ends is not counted.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/plugin/instance/sanitizer.h"

namespace specd {

class ProposalScore {
 public:
  // Of one proposal: its nodes, and how many of them are in the text.
  using OnScored = std::function<void(int32_t n_nodes, int32_t n_accepted)>;
  using OnDefect = std::function<void(const char* defect, int32_t node)>;

  // limits: but for the budget.
  ProposalScore(uint32_t max_batch, const TreeLimits& limits, OnScored on_scored,
                OnDefect on_defect)
      : limits_(limits),
        on_scored_(std::move(on_scored)),
        on_defect_(std::move(on_defect)),
        open_(max_batch) {}

  // A tree that continues the text behind `root_position`, cut before its first defect. False when nothing is
  // left of it; an empty one is fine.
  bool proposed(uint32_t slot, int32_t root_position, int32_t budget, int32_t n_nodes,
                const int32_t* token, const int32_t* parent, const int32_t* flags);
  // The token at `position` of the text, in order of position.
  void committed(uint32_t slot, int32_t position, int32_t token);
  void ended(uint32_t slot) { open_[slot].clear(); }

 private:
  struct Tree {
    std::vector<int32_t> token, parent;
    int32_t next_position;  // of the text that decides about the children of `reached`
    int32_t reached = -1;
    int32_t n_accepted = 0;
  };
  TreeLimits limits_;
  const OnScored on_scored_;
  const OnDefect on_defect_;
  std::vector<std::vector<Tree>> open_;  // by slot, in order of their roots
  std::vector<int32_t> depth_;
};

}  // namespace specd
