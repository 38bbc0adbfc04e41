#include "core/plugin/instance/sanitizer.h"

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

constexpr int32_t kKnownFlags = SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP;

// What is wrong with a node that failed the checks; kNone for SPECD_NO_TOKEN, with which a drafter
// ends its tree. Called for at most one node of a tree.
Defect node_defect(int32_t node, int32_t token, int32_t parent, const TreeLimits& limits,
                   int32_t depth) {
  if (token == SPECD_NO_TOKEN) return Defect::kNone;
  if (token < 0 || token >= limits.vocab_size) return Defect::kTokenOutOfRange;
  if (parent < -1 || parent >= node) return Defect::kParentOutOfOrder;
  if (depth > limits.max_depth) return Defect::kTooDeep;
  return Defect::kUnknownFlag;
}

// Templated so that the loop without probes has no test for them.
template <bool kProbes>
TreeCheck check_nodes(int32_t n, const int32_t* token, const int32_t* parent, const int32_t* flags,
                      const TreeLimits& limits, int32_t* depth) {
  const auto vocab = static_cast<uint32_t>(limits.vocab_size < 0 ? 0 : limits.vocab_size);
  const int32_t max_depth = limits.max_depth;
  int32_t last_depth = 0;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t p = parent[i];
    // Unsigned arithmetic: INT32_MAX + 1 must not overflow.
    const uint32_t above = static_cast<uint32_t>(p) + 1u;  // 0 = the root
    const bool ordered = above <= static_cast<uint32_t>(i);
    // A chain's depth stays in a register instead of going through memory.
    const int32_t d = !ordered || above == 0              ? 1
                      : above == static_cast<uint32_t>(i) ? last_depth + 1
                                                          : depth[p] + 1;
    bool good = (static_cast<uint32_t>(token[i]) < vocab) & ordered & (d <= max_depth);
    if constexpr (kProbes) good &= (flags[i] & ~kKnownFlags) == 0;
    if (!good) [[unlikely]] {
      const Defect defect = node_defect(i, token[i], p, limits, d);
      return {i, defect, defect == Defect::kNone ? -1 : i};
    }
    depth[i] = last_depth = d;
  }
  return {n, Defect::kNone, -1};
}

}  // namespace

const char* defect_name(Defect defect) {
  switch (defect) {
    case Defect::kNone:
      return "none";
    case Defect::kCountNegative:
      return "count_negative";
    case Defect::kCountOverBudget:
      return "count_over_budget";
    case Defect::kTokenOutOfRange:
      return "token_out_of_range";
    case Defect::kParentOutOfOrder:
      return "parent_out_of_order";
    case Defect::kTooDeep:
      return "too_deep";
    case Defect::kUnknownFlag:
      return "unknown_flag";
    case Defect::kPathNotInTree:
      return "path_not_in_tree";
    case Defect::kPathOfProbe:
      return "path_of_probe";
    case Defect::kPathTooLong:
      return "path_too_long";
    case Defect::kNextTokenOutOfRange:
      return "next_token_out_of_range";
  }
  return "unknown";
}

TreeCheck check_tree(int32_t n_nodes, const int32_t* token, const int32_t* parent,
                     const int32_t* flags, const TreeLimits& limits, int32_t* depth) {
  if (n_nodes < 0) return {0, Defect::kCountNegative, -1};
  const int32_t budget = limits.node_budget < 0 ? 0 : limits.node_budget;
  const int32_t n = n_nodes < budget ? n_nodes : budget;
  TreeCheck check = limits.probes && flags != nullptr
                        ? check_nodes<true>(n, token, parent, flags, limits, depth)
                        : check_nodes<false>(n, token, parent, flags, limits, depth);
  if (check.defect == Defect::kNone && check.n_nodes == n && n_nodes > budget) {
    check.defect = Defect::kCountOverBudget;
    check.node = budget;
  }
  return check;
}

Defect check_verdict(int32_t n_accepted, const int32_t* path, int32_t path_capacity,
                     int32_t next_token, int32_t n_nodes, const int32_t* parent,
                     const int32_t* flags, int32_t vocab_size) {
  if (n_accepted < 0) return Defect::kCountNegative;
  if (n_accepted > path_capacity) return Defect::kPathTooLong;
  int32_t last = -1;
  for (int32_t i = 0; i < n_accepted; ++i) {
    const int32_t node = path[i];
    // `node > last` makes the walk finite and refuses a node above itself, whatever parent says.
    if (node <= last || node >= n_nodes || parent[node] != last) return Defect::kPathNotInTree;
    if (flags != nullptr && (flags[node] & SPECD_NODE_PROBE) != 0) return Defect::kPathOfProbe;
    last = node;
  }
  if (next_token < 0 || next_token >= vocab_size) return Defect::kNextTokenOutOfRange;
  return Defect::kNone;
}

}  // namespace specd
