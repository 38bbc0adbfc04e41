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

void DraftTree::cut(int32_t n) {
  for (std::vector<int32_t>* each : {&token, &parent, &depth, &flags}) {
    each->resize(static_cast<size_t>(n));
  }
}

void DraftTree::take_q(const int32_t* row) {
  q_row.assign(token.size() + 1, -1);
  for (const int32_t each : parent) {
    const auto element = static_cast<size_t>(each + 1);
    q_row[element] = row[element];
  }
}

void DraftTree::path_to(int32_t node, std::vector<int32_t>& path) const {
  path.clear();
  for (; node >= 0; node = parent[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
}

}  // namespace specd
