// The nodes that one sequence brings to a step, after validation: parents first, -1 = child of the
// root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

struct DraftTree {
  std::vector<int32_t> token, parent, depth;  // depth of a child of the root is 1
  std::vector<int32_t> flags;                 // SPECD_NODE_*; zero without probes

  int32_t size() const { return static_cast<int32_t>(token.size()); }
  void clear();

  // True when node i lies in its place: it and all its ancestors form a chain from the root whose
  // i-th node has index i. Its KV then needs no move, and its attention is a plain span.
  bool in_place(int32_t node) const { return depth[static_cast<size_t>(node)] == node + 1; }

  // Nodes from the root's child down to `node`, itself last.
  void path_to(int32_t node, std::vector<int32_t>& path) const;
};

}  // namespace specd
