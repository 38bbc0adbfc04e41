// Checks trees and verdicts of plugins before they reach a kernel. A tree is cut at its first bad
// node, so it can only cost time. Of a verdict only the form is checked: that its next token is
// right is the verifier's promise (its guarantee). Pure functions over the columns of one sequence;
// they allocate nothing.
#pragma once

#include <cstdint>

namespace specd {

enum class Defect : uint8_t {
  kNone,
  kCountNegative,
  kCountOverBudget,
  kTokenOutOfRange,
  kParentOutOfOrder,  // not -1 <= parent < node
  kTooDeep,
  kUnknownFlag,
  kPathNotInTree,  // verdicts: not a path from the root
  kPathOfProbe,
  kPathTooLong,
  kNextTokenOutOfRange,
};
const char* defect_name(Defect defect);

struct TreeLimits {
  int32_t vocab_size = 0;
  int32_t node_budget = 0;  // <= capacity of the columns
  int32_t max_depth = 0;
  bool probes = false;  // flags column present; else flags is ignored and may be null
};

struct TreeCheck {
  int32_t n_nodes = 0;  // nodes [0, n_nodes) are good
  Defect defect = Defect::kNone;
  int32_t node = -1;  // where it was cut
};

// `depth` receives [n_nodes] depths (root's children have 1).
TreeCheck check_tree(int32_t n_nodes, const int32_t* token, const int32_t* parent,
                     const int32_t* flags, const TreeLimits& limits, int32_t* depth);

// A verdict is usable iff path is a chain of parents from the root over ordinary nodes and
// next_token is in range.
Defect check_verdict(int32_t n_accepted, const int32_t* path, int32_t path_capacity,
                     int32_t next_token, int32_t n_nodes, const int32_t* parent,
                     const int32_t* flags, int32_t vocab_size);

}  // namespace specd
