// The public pools: one per tenant, so that no draft depends on the text of another tenant.
#ifndef SPECD_PROMPT_LOOKUP_TENANT_POOLS_H
#define SPECD_PROMPT_LOOKUP_TENANT_POOLS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "match_pool.h"

namespace specd::prompt_lookup {

// All pools together hold about the limit of one (max_tokens), so that tenants share the quota. Whether a
// tenant's pool is emptied to make room depends on the others: that costs it drafts, and shows it no text. So whoever
// begins many sequences, each of another tenant, empties the pools of all.
class TenantPools {
 public:
  static constexpr std::size_t kTenantsMax = 64;

  TenantPools(const sdk::HostAllocator<int32_t>& memory, const MatchPool::Options& options)
      : memory_(memory), options_(options) {}

  // The tenant's pool, for a sequence that begins. Drops those that no sequence has while there are too many, the ones
  // asked for the longest time ago first.
  std::shared_ptr<MatchPool> of(uint64_t tenant) {
    const auto known = std::find_if(pools_.begin(), pools_.end(),
                                    [&](const Entry& each) { return each.tenant == tenant; });
    if (known == pools_.end()) {
      pools_.push_back({tenant, std::make_shared<MatchPool>(memory_, options_)});
    } else {
      std::rotate(known, known + 1, pools_.end());
    }
    std::shared_ptr<MatchPool> found = pools_.back().pool;
    for (std::size_t i = 0; i < pools_.size() && pools_.size() > kTenantsMax;) {
      const bool is_free = pools_[i].pool.use_count() == 1;
      if (is_free) pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_free) ++i;
    }
    make_room();
    return found;
  }

  // Empties pools, those asked for the longest time ago first, while all together hold too much. The last one asked
  // for has a limit of its own.
  void make_room() {
    for (std::size_t i = 0; i + 1 < pools_.size() && taken() > options_.max_tokens; ++i)
      pools_[i].pool->clear();
  }

  void clear() {
    for (const Entry& each : pools_) each.pool->clear();
  }

 private:
  struct Entry {
    uint64_t tenant;
    std::shared_ptr<MatchPool> pool;
  };

  uint64_t taken() const {
    uint64_t sum = 0;
    for (const Entry& each : pools_) sum += each.pool->taken();
    return sum;
  }

  const sdk::HostAllocator<int32_t> memory_;
  const MatchPool::Options options_;
  std::vector<Entry> pools_;  // the one asked for last is last
};

}  // namespace specd::prompt_lookup

#endif
