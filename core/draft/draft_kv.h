// KV of rows that draft: in the target's pages, cut for whoever computes the rows, or in pages of its own
// where it does not fit into those.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/kv/page_pool.h"
#include "core/model/kv_store.h"

namespace specd {

struct DraftKv {
  std::string owner;  // for messages: "draft model 'small'"
  // Set before the first session.
  std::optional<KvStore> store;
  std::unique_ptr<PagePool> own_pages;  // null = `store` lies in the target's pages
  int32_t positions_max = 0;
  std::atomic<int32_t> pages_held{0};  // written by the step thread
};

}  // namespace specd
