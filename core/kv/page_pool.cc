#include "core/kv/page_pool.h"

#include <string>

#include "core/base/check.h"

namespace specd {

PagePool::PagePool(int32_t n_pages) : held_(static_cast<size_t>(n_pages), false) {
  free_.reserve(held_.size());
  for (int32_t page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

bool PagePool::take(int32_t n, std::vector<int32_t>& out) {
  if (n > n_free()) return false;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    held_[static_cast<size_t>(page)] = true;
    out.push_back(page);
  }
  return true;
}

void PagePool::give_back(std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    SPECD_CHECK(page >= 0 && page < n_pages() && held_[static_cast<size_t>(page)],
                "page " + std::to_string(page) + " is not held");
    held_[static_cast<size_t>(page)] = false;
    free_.push_back(page);
  }
  pages.clear();
}

}  // namespace specd
