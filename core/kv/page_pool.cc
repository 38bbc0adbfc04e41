#include "core/kv/page_pool.h"

#include <string>

#include "core/base/check.h"

namespace specd {

PagePool::PagePool(int32_t n_pages)
    : references_(static_cast<size_t>(n_pages), 0), cached_(references_.size(), false) {
  free_.reserve(references_.size());
  for (int32_t page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

bool PagePool::take(int32_t n, std::vector<int32_t>& out) {
  if (n > n_free() && reclaimer_ != nullptr) reclaimer_->reclaim(n - n_free());
  if (n > n_free()) return false;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(page)] = 1;
    out.push_back(page);
  }
  return true;
}

void PagePool::share(int32_t page) {
  SPECD_CHECK(page >= 0 && page < n_pages() && references(page) > 0,
              "page " + std::to_string(page) + " is not held");
  if (++references_[static_cast<size_t>(page)] == 2 && cached_[static_cast<size_t>(page)])
    --n_idle_;
}

bool PagePool::release(int32_t page) {
  SPECD_CHECK(page >= 0 && page < n_pages() && references(page) > 0,
              "page " + std::to_string(page) + " is not held");
  const bool cached = cached_[static_cast<size_t>(page)];
  const int32_t left = --references_[static_cast<size_t>(page)];
  if (left == 1 && cached) ++n_idle_;
  if (left > 0) return false;
  SPECD_CHECK(!cached, "page " + std::to_string(page) + " is still marked as cached");
  free_.push_back(page);
  return true;
}

void PagePool::set_cached(int32_t page, bool cached) {
  SPECD_CHECK(references(page) > 0 && cached_[static_cast<size_t>(page)] != cached,
              "page " + std::to_string(page));
  cached_[static_cast<size_t>(page)] = cached;
  if (references(page) == 1) n_idle_ += cached ? 1 : -1;
}

void PagePool::release(std::vector<int32_t>& pages) {
  for (const int32_t page : pages) release(page);
  pages.clear();
}

}  // namespace specd
