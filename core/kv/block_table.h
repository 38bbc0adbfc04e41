// The pages of one sequence, and the mapping from its slots to slots of the cache.
//
// Slots of a sequence are numbered like its positions: the committed token at position p is in slot
// p. Tree rows of a step follow the root: node i is in slot root + 1 + i. Commit moves the accepted
// ones down to their positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "specd/kernels/types.h"

namespace specd {

struct BlockTable {
  std::vector<int32_t> pages;

  int32_t capacity() const { return static_cast<int32_t>(pages.size()) * kernels::kPageTokens; }
  // REQUIRES 0 <= slot < capacity()
  int32_t physical(int32_t slot) const {
    return pages[static_cast<size_t>(slot / kernels::kPageTokens)] * kernels::kPageTokens +
           slot % kernels::kPageTokens;
  }
};

constexpr int32_t pages_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

// Physical slots whose KV is to be copied, in this order.
struct KvMoves {
  std::vector<int32_t> from, to;

  // Moves [first, first + n).
  KvMoves part(size_t first, size_t n) const;
};

// Plans the moves that place accepted nodes `path` (node indices, root side first, increasing)
// right after the root at slot `root`. Appends to `moves`; nothing for a chain, which is already in
// place. No destination is after its source, so moving in order is safe.
void plan_compaction(const BlockTable& table, int32_t root, const std::vector<int32_t>& path,
                     KvMoves& moves);

}  // namespace specd
