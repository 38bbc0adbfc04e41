// Pages of the KV cache as numbers: who holds which page. Bytes live in model/kv_store.h.
// Not thread-safe: the step thread owns it.
#pragma once

#include <cstdint>
#include <vector>

namespace specd {

// Invariant: every page is either free or held by exactly one table.
class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(held_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }

  // Appends n pages to `out`. All or nothing: on false nothing has changed.
  [[nodiscard]] bool take(int32_t n, std::vector<int32_t>& out);
  // Gives all pages back and clears `pages`. REQUIRES that they are held.
  void give_back(std::vector<int32_t>& pages);

 private:
  std::vector<int32_t> free_;  // used as a stack
  std::vector<bool> held_;
};

}  // namespace specd
