// Token trees whose tokens only the device knows: copying them into rows, cutting them, walking
// down a tree. Parents come before children; parent -1 is the root, which is not a node.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

// target[to[i]] = source[from[i]] where that is a token in [0, vocab), else `otherwise`.
struct PickTokensArgs {
  const int32_t* source = nullptr;
  const int32_t* from = nullptr;  // [n]
  int32_t* target = nullptr;
  const int32_t* to = nullptr;  // [n], distinct
  int32_t n = 0;
  int32_t vocab = 0;
  int32_t otherwise = 0;
};

// Reduces n_nodes[s] to the number of nodes before the first whose token is not in [0, vocab), and
// to [0, capacity].
struct ClampNodesArgs {
  int32_t* n_nodes = nullptr;      // [n]
  const int32_t* token = nullptr;  // [n, capacity]
  int32_t n = 0;
  int32_t capacity = 0;
  int32_t vocab = 0;
};

// Walks down from the root, always to the first child that has none of `skip_flags` and the wanted
// token: wanted[s][0] below the root, wanted[s][i + 1] below node i. Ends where there is no such
// child, or when the path is full. Any content is safe.
struct WalkTreeArgs {
  const int32_t* n_nodes = nullptr;  // [n]
  const int32_t* token = nullptr;    // [n, capacity]
  const int32_t* parent = nullptr;   // [n, capacity]
  const int32_t* flags = nullptr;    // [n, capacity] or null
  const int32_t* wanted = nullptr;   // [n, capacity + 1]
  int32_t* n_path = nullptr;         // out [n]
  int32_t* path = nullptr;           // out [n, path_capacity]: nodes, root side first
  int32_t* last = nullptr;           // out [n]: the wanted token at the end of the path
  int32_t n = 0;
  int32_t capacity = 0;
  int32_t path_capacity = 0;
  int32_t skip_flags = 0;
};

}  // namespace specd::kernels
