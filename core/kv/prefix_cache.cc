#include "core/kv/prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace specd {

namespace {
constexpr int32_t kPage = kernels::kPageTokens;

const int32_t* tokens_of(const std::vector<int32_t>& tokens, int32_t page) {
  return tokens.data() + static_cast<size_t>(page) * kPage;
}
}  // namespace

PrefixCache::PrefixCache(PagePool& pool) : pool_(pool), entries_(1) { pool.set_reclaimer(this); }

PrefixCache::~PrefixCache() {
  pool_.set_reclaimer(nullptr);
  for (const auto& [key, entry] : by_key_) {
    pool_.set_cached(at(entry).page, false);
    pool_.release(at(entry).page);
  }
}

uint64_t PrefixCache::key_of(uint64_t parent_key, const int32_t* tokens) const {
  std::array<char, sizeof(parent_key) + kPage * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), &parent_key, sizeof(parent_key));
  std::memcpy(bytes.data() + sizeof(parent_key), tokens, kPage * sizeof(int32_t));
  return siphash(secret_, bytes.data(), bytes.size());
}

int32_t PrefixCache::child(int32_t parent, uint64_t key, const int32_t* tokens) const {
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = at(it->second);
    if (entry.parent == parent && std::equal(tokens, tokens + kPage, entry.tokens.begin()))
      return it->second;
  }
  return -1;
}

PrefixCache::Prefix PrefixCache::find(const std::string& salt,
                                      const std::vector<int32_t>& tokens) const {
  Prefix found;
  const auto first = salts_.find(salt);
  if (first == salts_.end()) return found;
  int32_t entry = first->second;
  for (const int32_t n_full = static_cast<int32_t>(tokens.size()) / kPage; found.n_pages < n_full;
       ++found.n_pages) {
    const int32_t* page_tokens = tokens_of(tokens, found.n_pages);
    entry = child(entry, key_of(at(entry).key, page_tokens), page_tokens);
    if (entry < 0) break;
    found.entry = entry;
    if (pool_.references(at(entry).page) == 1) ++found.n_idle;
  }
  return found;
}

PrefixChain PrefixCache::attach(const Prefix& found, int32_t n_pages, std::vector<int32_t>& pages) {
  SPECD_CHECK(n_pages <= found.n_pages, "attach() takes at most the pages that find() returned");
  if (n_pages == 0) return {};
  PrefixChain chain{.entry = found.entry, .n_pages = n_pages};
  for (int32_t i = found.n_pages; i > n_pages; --i) chain.entry = at(chain.entry).parent;
  const size_t first = pages.size();
  for (int32_t entry = chain.entry; at(entry).page >= 0; entry = at(entry).parent) {
    pool_.share(at(entry).page);
    pages.push_back(at(entry).page);
  }
  SPECD_CHECK(pages.size() - first == static_cast<size_t>(n_pages),
              "a page was evicted after find()");
  std::reverse(pages.begin() + static_cast<ptrdiff_t>(first), pages.end());
  touch(chain);
  return chain;
}

void PrefixCache::extend(PrefixChain& chain, const std::string& salt,
                         const std::vector<int32_t>& tokens, int32_t n_tokens,
                         std::vector<int32_t>& pages) {
  for (; (chain.n_pages + 1) * kPage <= n_tokens; ++chain.n_pages) {
    const int32_t parent = chain.n_pages == 0 ? root(salt) : chain.entry;
    const int32_t* page_tokens = tokens_of(tokens, chain.n_pages);
    int32_t& page = pages[static_cast<size_t>(chain.n_pages)];
    const uint64_t key = key_of(at(parent).key, page_tokens);
    const int32_t known = child(parent, key, page_tokens);
    if (known >= 0) {
      pool_.share(at(known).page);
      pool_.release(page);
      page = at(known).page;
      chain.entry = known;
      continue;
    }
    // What needs memory comes first: without it the cache and the chain stay as they are.
    int32_t made = -1;
    try {
      made = new_entry();
      by_key_.emplace(key, made);
    } catch (...) {
      if (made >= 0) unused_.push_back(made);
      drop_empty_root(parent);  // it may be new, for this page
      throw;
    }
    chain.entry = made;
    Entry& entry = at(chain.entry);
    entry.key = key;
    entry.parent = parent;
    entry.n_children = 0;
    entry.page = page;
    std::copy(page_tokens, page_tokens + kPage, entry.tokens.begin());
    ++at(parent).n_children;
    insert_before(chain.entry, at(parent).page < 0 ? 0 : parent);
    pool_.share(page);
    pool_.set_cached(page, true);
  }
}

void PrefixCache::touch(const PrefixChain& chain) {
  if (chain.n_pages > 0) renew(chain.entry);
}

void PrefixCache::renew(int32_t entry) {
  // From last to first page, so that a parent stays newer than its children.
  for (; at(entry).page >= 0; entry = at(entry).parent) {
    unlink(entry);
    insert_before(entry, 0);
  }
}

int32_t PrefixCache::reclaim(int32_t n_pages) {
  int32_t freed = 0;
  while (freed < n_pages && pool_.n_idle() > 0) {
    const int32_t oldest = at(0).newer;
    if (pool_.references(at(oldest).page) > 1) {
      renew(oldest);  // in use, and so is its whole prefix
      continue;
    }
    evict(oldest);
    ++freed;
  }
  return freed;
}

int32_t PrefixCache::new_entry() {
  if (unused_.empty()) {
    entries_.emplace_back();
    try {
      unused_.reserve(entries_.capacity());  // evict() needs no memory
    } catch (...) {
      entries_.pop_back();
      throw;
    }
    return static_cast<int32_t>(entries_.size()) - 1;
  }
  const int32_t entry = unused_.back();
  unused_.pop_back();
  return entry;
}

int32_t PrefixCache::root(const std::string& salt) {
  const auto [it, is_new] = salts_.try_emplace(salt, -1);
  if (!is_new) return it->second;
  try {
    it->second = new_entry();
  } catch (...) {
    salts_.erase(it);
    throw;
  }
  Entry& entry = at(it->second);
  entry.key = siphash(secret_, salt.data(), salt.size());
  entry.parent = entry.page = -1;
  entry.n_children = 0;
  entry.salt = it;
  return it->second;
}

// Forgets the entry if it is a root without children.
void PrefixCache::drop_empty_root(int32_t entry) {
  const Entry& gone = at(entry);
  if (gone.n_children > 0 || gone.page >= 0) return;
  salts_.erase(gone.salt);
  unused_.push_back(entry);
}

// Inserting before entry 0 makes it the newest entry.
void PrefixCache::insert_before(int32_t entry, int32_t newer) {
  const int32_t older = at(newer).older;
  at(entry).older = older;
  at(entry).newer = newer;
  at(older).newer = entry;
  at(newer).older = entry;
}

void PrefixCache::unlink(int32_t entry) {
  at(at(entry).older).newer = at(entry).newer;
  at(at(entry).newer).older = at(entry).older;
}

void PrefixCache::evict(int32_t entry) {
  Entry& gone = at(entry);
  SPECD_CHECK(gone.n_children == 0, "a page is evicted after its children");
  const auto [begin, end] = by_key_.equal_range(gone.key);
  by_key_.erase(std::find_if(begin, end, [&](const auto& each) { return each.second == entry; }));
  unlink(entry);
  pool_.set_cached(gone.page, false);
  pool_.release(gone.page);
  unused_.push_back(entry);
  --at(gone.parent).n_children;
  drop_empty_root(gone.parent);
}

}  // namespace specd
