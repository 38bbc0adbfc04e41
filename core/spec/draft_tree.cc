#include "core/spec/draft_tree.h"

#include <algorithm>

namespace specd {

void DraftTree::clear() {
  token.clear();
  parent.clear();
  depth.clear();
  flags.clear();
  q_row.clear();
}

void DraftTree::path_to(int32_t node, std::vector<int32_t>& path) const {
  path.clear();
  for (; node >= 0; node = parent[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
}

}  // namespace specd
