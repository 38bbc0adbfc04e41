// The validated draft nodes of one sequence for a step: parents first, parent -1 = child of
// the root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

struct DraftTree {
  std::vector<int32_t> token, parent, depth;  // a child of the root has depth 1
  std::vector<int32_t> flags;                 // SPECD_NODE_*; zero without probes
  // [1 + size] Rows of the route's q that the children of the root and of each node were drawn from;
  // -1 without children. Empty when the drafter hands on no q.
  std::vector<int32_t> q_row;

  int32_t size() const { return static_cast<int32_t>(token.size()); }
  void clear();
  void cut(int32_t n);              // to its first n nodes
  void take_q(const int32_t* row);  // of the root and of each node; those with children are kept

  // True when node i and all its ancestors form a chain from the root in which node j is at index
  // j. Its KV then needs no move, and its attention is a plain span.
  bool in_place(int32_t node) const { return depth[static_cast<size_t>(node)] == node + 1; }

  // Stores the nodes from the root's child down to and including `node`.
  void path_to(int32_t node, std::vector<int32_t>& path) const;
};

}  // namespace specd
