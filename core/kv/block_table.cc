#include "core/kv/block_table.h"

#include "core/base/check.h"

namespace specd {

KvMoves KvMoves::part(size_t first, size_t n) const {
  const auto begin = static_cast<ptrdiff_t>(first), end = static_cast<ptrdiff_t>(first + n);
  return {{from.begin() + begin, from.begin() + end}, {to.begin() + begin, to.begin() + end}};
}

void plan_compaction(const BlockTable& table, int32_t root, const std::vector<int32_t>& path,
                     KvMoves& moves) {
  for (size_t i = 0; i < path.size(); ++i) {
    const int32_t source = root + 1 + path[i];
    const int32_t target = root + 1 + static_cast<int32_t>(i);
    SPECD_CHECK(target <= source, "the node indices of a path must increase");
    if (source == target) continue;
    moves.from.push_back(table.physical(source));
    moves.to.push_back(table.physical(target));
  }
}

}  // namespace specd
