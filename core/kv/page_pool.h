// Pages of the KV cache as numbers: who holds which page. Bytes live in model/kv_store.h.
// Not thread-safe: the step thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Who holds pages whose content can be had again: the prefix cache.
class PageReclaimer {
 public:
  virtual ~PageReclaimer() = default;
  // [step] Releases pages until n_pages more are free or nothing is left to give, those missed
  // least first; returns how many became free. Must not take pages itself.
  virtual int32_t reclaim(int32_t n_pages) = 0;
};

// Counts references: a page is free when nobody holds it. A page with several holders is read only.
// Invariants: a page is free exactly when its count is 0; n_free() + n_idle() + pages in use =
// n_pages().
class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  // Pages that only the prefix cache holds: as good as free.
  int32_t n_idle() const { return n_idle_; }
  // REQUIRES a page of this pool.
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // Whom take() asks when pages are short; outlives the pool's use, null = nobody.
  void set_reclaimer(PageReclaimer* reclaimer) { reclaimer_ = reclaimer; }

  // Appends n pages to `out`, each held once. All or nothing: on false nobody has got a page (the
  // reclaimer may have given some up).
  [[nodiscard]] bool take(int32_t n, std::vector<int32_t>& out);
  // One holder more. REQUIRES that the page is held.
  void share(int32_t page);
  // One holder less; true when the page became free. REQUIRES that the page is held.
  bool release(int32_t page);
  // Releases each once and clears `pages`.
  void release(std::vector<int32_t>& pages);
  // One of the page's holders is the prefix cache, or no longer. REQUIRES that the page is held.
  void set_cached(int32_t page, bool cached);

 private:
  std::vector<int32_t> free_;        // used as a stack
  std::vector<int32_t> references_;  // [n_pages]
  std::vector<bool> cached_;         // [n_pages]
  int32_t n_idle_ = 0;
  PageReclaimer* reclaimer_ = nullptr;
};

}  // namespace specd
