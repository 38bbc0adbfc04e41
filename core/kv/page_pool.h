// Pages of the KV cache as numbers, with reference counts. The bytes are in model/kv_store.h. Not
// thread-safe: owned by the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Holds pages whose content can be restored: the prefix cache.
class PageReclaimer {
 public:
  virtual ~PageReclaimer() = default;
  // [step] Releases pages, least recently used first, until n_pages more are free or none is left
  // to release. Returns the number of pages that became free. Must not take pages.
  virtual int32_t reclaim(int32_t n_pages) = 0;
};

// Reference-counted pages. A page with several holders is read-only. Invariants: a page is free
// exactly when its count is 0; n_free() + n_idle() + pages in use = n_pages().
class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  // Pages held only by the prefix cache; available like free ones.
  int32_t n_idle() const { return n_idle_; }
  // REQUIRES a valid page number.
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // Sets what take() calls when pages are short; it must outlive the pool's use. Null = none.
  void set_reclaimer(PageReclaimer* reclaimer) { reclaimer_ = reclaimer; }

  // Appends n pages to `out`, each with one reference. All or nothing: on false no page was taken
  // (the reclaimer may have released some).
  [[nodiscard]] bool take(int32_t n, std::vector<int32_t>& out);
  // Adds a reference. REQUIRES that the page is held.
  void share(int32_t page);
  // Removes a reference; returns true when the page became free. REQUIRES that the page is held.
  bool release(int32_t page);
  // Removes one reference from each page and clears `pages`.
  void release(std::vector<int32_t>& pages);
  // Marks whether the prefix cache is one of the page's holders. REQUIRES that the page is held.
  void set_cached(int32_t page, bool cached);

 private:
  std::vector<int32_t> free_;        // used as a stack
  std::vector<int32_t> references_;  // [n_pages]
  std::vector<bool> cached_;         // [n_pages]
  int32_t n_idle_ = 0;
  PageReclaimer* reclaimer_ = nullptr;
};

}  // namespace specd
