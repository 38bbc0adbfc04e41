// Token trees where only the device knows the tokens: moving them into rows, cutting them, and the
// way down a tree. Nodes come parents first; parent -1 is the root, which is no node.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

// target[to[i]] = source[from[i]] where that is a token of [0, vocab), else `otherwise`.
struct PickTokensArgs {
  const int32_t* source = nullptr;
  const int32_t* from = nullptr;  // [n]
  int32_t* target = nullptr;
  const int32_t* to = nullptr;  // [n], distinct
  int32_t n = 0;
  int32_t vocab = 0;
  int32_t otherwise = 0;
};

// n_nodes[s] becomes the number of nodes before the first whose token is not in [0, vocab), at most
// what it was, and within [0, capacity].
struct ClampNodesArgs {
  int32_t* n_nodes = nullptr;      // [n]
  const int32_t* token = nullptr;  // [n, capacity]
  int32_t n = 0;
  int32_t capacity = 0;
  int32_t vocab = 0;
};

// From the root down, always to the first child that has none of `skip_flags` and the token that is
// wanted below where it stands: wanted[s][0] below the root, wanted[s][i + 1] below node i. Ends
// where there is none, or when the path is full. Any content is safe.
struct WalkTreeArgs {
  const int32_t* n_nodes = nullptr;  // [n]
  const int32_t* token = nullptr;    // [n, capacity]
  const int32_t* parent = nullptr;   // [n, capacity]
  const int32_t* flags = nullptr;    // [n, capacity] or null
  const int32_t* wanted = nullptr;   // [n, capacity + 1]
  int32_t* n_path = nullptr;         // out [n]
  int32_t* path = nullptr;           // out [n, path_capacity]: nodes, root side first
  int32_t* last = nullptr;           // out [n]: what was wanted at the end
  int32_t n = 0;
  int32_t capacity = 0;
  int32_t path_capacity = 0;
  int32_t skip_flags = 0;
};

}  // namespace specd::kernels
