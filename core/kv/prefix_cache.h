// Full pages of committed tokens, kept after their sequences so that the next prompt with the same
// beginning need not compute them.
//
// A page is found by the pages before it and its own 16 tokens, all compared one by one: the keyed
// hash only says where to look, and a collision costs time, never a wrong page. `salt` separates
// tenants: a page is found under the salt that it was added under and no other.
// Not thread-safe: the step thread owns it.
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

// How far one sequence's pages are in the cache.
struct PrefixChain {
  int32_t entry = -1;   // the last of its pages' entries
  int32_t n_pages = 0;  // its first pages; the sequence holds them, so their entries stay
};

// Holds one reference of each of its pages. What nobody else holds can be evicted, least recently
// used first and never before what follows it, so that every entry's whole prefix is there.
class PrefixCache : public PageReclaimer {
 public:
  // Becomes the pool's reclaimer. REQUIRES that `pool` outlives this.
  explicit PrefixCache(PagePool& pool);
  ~PrefixCache() override;  // gives up every page
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Prefix {
    int32_t n_pages = 0;  // full pages of the tokens that are here
    int32_t n_idle = 0;   // those of them that only the cache holds
    int32_t entry = -1;   // the last one's; good until something is evicted
  };
  Prefix find(const std::string& salt, const std::vector<int32_t>& tokens) const;
  // Appends the first n_pages pages of what find() has found to `pages`, a reference for the caller
  // on each. Requires that nothing was evicted since.
  PrefixChain attach(const Prefix& found, int32_t n_pages, std::vector<int32_t>& pages);
  // Adds the pages that are full of the first n_tokens tokens, whose KV is final. Where the same
  // page is here already the sequence gets that one in `pages` and releases its own: the bits are
  // equal.
  void extend(PrefixChain& chain, const std::string& salt, const std::vector<int32_t>& tokens,
              int32_t n_tokens, std::vector<int32_t>& pages);
  // The sequence lets go of its pages now: its prefix was used last.
  void touch(const PrefixChain& chain);

  // Evicts; see PageReclaimer.
  int32_t reclaim(int32_t n_pages) override;
  // Evicts all that only the cache holds.
  void clear() { reclaim(pool_.n_pages()); }
  int32_t n_pages() const { return static_cast<int32_t>(by_key_.size()); }

 protected:
  // Of a page behind the prefix that `parent_key` stands for. Tests make it collide.
  virtual uint64_t key_of(uint64_t parent_key, const int32_t* tokens) const;

 private:
  using Salts = std::map<std::string, int32_t>;
  // A page behind its parent, or (page == -1) the beginning of all prefixes under one salt.
  struct Entry {
    uint64_t key = 0;
    int32_t parent = -1;
    int32_t n_children = 0;
    int32_t page = -1;
    int32_t older = 0, newer = 0;  // a ring through entry 0; a parent is newer than its children
    std::array<int32_t, kernels::kPageTokens> tokens{};
    Salts::iterator salt;
  };

  Entry& at(int32_t entry) { return entries_[static_cast<size_t>(entry)]; }
  const Entry& at(int32_t entry) const { return entries_[static_cast<size_t>(entry)]; }
  int32_t child(int32_t parent, uint64_t key, const int32_t* tokens) const;
  int32_t new_entry();
  int32_t root(const std::string& salt);
  void insert_before(int32_t entry, int32_t newer);
  void unlink(int32_t entry);
  void renew(int32_t entry);
  void evict(int32_t entry);

  PagePool& pool_;
  SipKey secret_ = SipKey::random();
  std::vector<Entry> entries_;   // [0] is the ring's
  std::vector<int32_t> unused_;  // entries
  std::unordered_multimap<uint64_t, int32_t> by_key_;
  Salts salts_;
};

}  // namespace specd
