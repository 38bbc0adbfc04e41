// The pages of one sequence, and the way from its own slots to those of the cache.
//
// A sequence's slots are numbered like its positions: token at position p lies in slot p once it is
// committed. Tree rows of a step lie behind the root, node i in slot root + 1 + i; commit moves the
// accepted ones down to their positions.
#pragma once

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

// Slots to move so that accepted nodes `path` (node indices, root side first, increasing) follow
// the root at slot `root`: appends physical (from, to) pairs; nothing for a chain, which lies right
// already. Destinations never lie behind their sources, so that moving in order is safe.
void plan_compaction(const BlockTable& table, int32_t root, const std::vector<int32_t>& path,
                     std::vector<int32_t>& from, std::vector<int32_t>& to);

}  // namespace specd
