// Full pages of committed tokens, kept after their sequences end, so that a later prompt with the
// same prefix need not compute them.
//
// A page is identified by the pages before it and its own 16 tokens. Lookup compares all tokens;
// the keyed hash is only an index, so a collision costs time but never returns a wrong page. `salt`
// separates tenants: a page is found only under the salt with which it was added. Not thread-safe:
// owned by the step thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/siphash.h"
#include "core/kv/page_pool.h"
#include "specd/kernels/types.h"

namespace specd {

// The part of a sequence's pages that is in the cache.
struct PrefixChain {
  int32_t entry = -1;   // entry of the last such page
  int32_t n_pages = 0;  // leading pages; the sequence holds them, so their entries stay
};

// Holds one reference to each of its pages. A page without other holders can be evicted, least
// recently used first and never before the pages that follow it: the whole prefix of every entry
// is present.
class PrefixCache : public PageReclaimer {
 public:
  // Registers as the pool's reclaimer. REQUIRES that `pool` outlives this.
  explicit PrefixCache(PagePool& pool);
  ~PrefixCache() override;  // releases every page
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Prefix {
    int32_t n_pages = 0;  // full pages of the tokens that are cached
    int32_t n_idle = 0;   // those of them held only by the cache
    int32_t entry = -1;   // entry of the last page; valid until something is evicted
  };
  Prefix find(const std::string& salt, const std::vector<int32_t>& tokens) const;
  // Appends the first n_pages pages found by find() to `pages`, with a reference to each for the
  // caller. REQUIRES that nothing was evicted since.
  PrefixChain attach(const Prefix& found, int32_t n_pages, std::vector<int32_t>& pages);
  // Adds the pages filled by the first n_tokens tokens, whose KV is final. Where an equal page is
  // cached already, replaces the sequence's page in `pages` by it and releases the sequence's; the
  // bits are equal. Without memory throws std::bad_alloc: the chain ends before the page that found
  // none, and nothing else stays.
  void extend(PrefixChain& chain, const std::string& salt, const std::vector<int32_t>& tokens,
              int32_t n_tokens, std::vector<int32_t>& pages);
  // Marks the prefix as just used. Call when the sequence releases its pages.
  void touch(const PrefixChain& chain);

  // See PageReclaimer.
  int32_t reclaim(int32_t n_pages) override;
  // Evicts every page held only by the cache.
  void clear() { reclaim(pool_.n_pages()); }
  int32_t n_pages() const { return static_cast<int32_t>(by_key_.size()); }
  int32_t n_salts() const { return static_cast<int32_t>(salts_.size()); }  // each has pages

 protected:
  // Hash key of a page after the prefix identified by `parent_key`. Tests override it to
  // force collisions.
  virtual uint64_t key_of(uint64_t parent_key, const int32_t* tokens) const;

 private:
  using Salts = std::map<std::string, int32_t>;
  // A page after its parent. page == -1: the root of all prefixes of one salt.
  struct Entry {
    uint64_t key = 0;
    int32_t parent = -1;
    int32_t n_children = 0;
    int32_t page = -1;
    int32_t older = 0, newer = 0;  // ring through entry 0; a parent is newer than its children
    std::array<int32_t, kernels::kPageTokens> tokens{};
    Salts::iterator salt;
  };

  Entry& at(int32_t entry) { return entries_[static_cast<size_t>(entry)]; }
  const Entry& at(int32_t entry) const { return entries_[static_cast<size_t>(entry)]; }
  int32_t child(int32_t parent, uint64_t key, const int32_t* tokens) const;
  int32_t new_entry();
  int32_t root(const std::string& salt);
  void drop_empty_root(int32_t entry);
  void insert_before(int32_t entry, int32_t newer);
  void unlink(int32_t entry);
  void renew(int32_t entry);
  void evict(int32_t entry);

  PagePool& pool_;
  SipKey secret_ = SipKey::random();
  std::vector<Entry> entries_;   // entry 0 is the head of the ring
  std::vector<int32_t> unused_;  // indices of free entries
  std::unordered_multimap<uint64_t, int32_t> by_key_;
  Salts salts_;
};

}  // namespace specd
