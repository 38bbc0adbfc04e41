#include "core/plugin/beside/score.h"

#include <algorithm>

#include "specd/plugin_api/drafter.h"

namespace specd {

bool ProposalScore::proposed(uint32_t slot, int32_t root_position, int32_t budget, int32_t n_nodes,
                             const int32_t* token, const int32_t* parent, const int32_t* flags) {
  limits_.node_budget = budget;
  depth_.resize(static_cast<size_t>(std::max(budget, 0)));
  const TreeCheck check = check_tree(n_nodes, token, parent, flags, limits_, depth_.data());
  if (check.defect != Defect::kNone) on_defect_(defect_name(check.defect), check.node);
  if (check.n_nodes == 0) return check.defect == Defect::kNone;
  Tree tree{.token = {token, token + check.n_nodes},
            .parent = {parent, parent + check.n_nodes},
            .next_position = root_position + 1};
  for (int32_t i = 0; flags != nullptr && i < check.n_nodes; ++i) {
    // A probe is computed and never accepted.
    if ((flags[i] & SPECD_NODE_PROBE) != 0) tree.token[static_cast<size_t>(i)] = SPECD_NO_TOKEN;
  }
  open_[slot].push_back(std::move(tree));
  return true;
}

void ProposalScore::committed(uint32_t slot, int32_t position, int32_t token) {
  const auto is_decided = [&](Tree& tree) {
    if (tree.next_position != position) return false;
    const auto n = static_cast<int32_t>(tree.token.size());
    const auto is_child = [&](int32_t i) {
      return tree.parent[static_cast<size_t>(i)] == tree.reached;
    };
    int32_t found = tree.reached + 1;  // children come behind their parents
    while (found < n && (!is_child(found) || tree.token[static_cast<size_t>(found)] != token))
      ++found;
    if (found < n) {
      tree.reached = found;
      ++tree.n_accepted;
      ++tree.next_position;
      for (int32_t i = found + 1; i < n; ++i) {
        if (is_child(i)) return false;
      }
    }
    on_scored_(n, tree.n_accepted);
    return true;
  };
  std::erase_if(open_[slot], is_decided);
}

}  // namespace specd
