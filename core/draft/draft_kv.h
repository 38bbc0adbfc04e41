// KV of rows that draft: in the target's pages, cut for whoever computes the rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "core/model/kv_store.h"

namespace specd {

struct DraftKv {
  std::string owner;             // for messages: "draft model 'small'"
  std::optional<KvStore> store;  // set before the first session
  int32_t positions_max = 0;
  std::atomic<int32_t> pages_held{0};  // written by the step thread
};

}  // namespace specd
