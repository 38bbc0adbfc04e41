#include "core/kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <new>
#include <random>
#include <set>

namespace specd {
namespace {

long g_allocations_left = 0;  // until one fails; 0 = none will

bool allocation_fails() { return g_allocations_left > 0 && --g_allocations_left == 0; }

}  // namespace
}  // namespace specd

#include "tests/new_operators.h"

namespace specd {
namespace {

constexpr int32_t kPage = kernels::kPageTokens;

std::vector<int32_t> tokens_from(int32_t first, int32_t n) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}

// Computes a text's pages and leaves them in the cache.
void add(PagePool& pool, PrefixCache& cache, const std::string& salt,
         const std::vector<int32_t>& tokens) {
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.take(static_cast<int32_t>(tokens.size()) / kPage, pages));
  PrefixChain chain;
  cache.extend(chain, salt, tokens, static_cast<int32_t>(tokens.size()), pages);
  cache.touch(chain);
  pool.release(pages);
}

TEST(PrefixCache, finds_full_pages_of_the_same_beginning_only) {
  PagePool pool(16);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = tokens_from(100, 3 * kPage + 5);
  EXPECT_EQ(cache.find("", text).n_pages, 0);
  add(pool, cache, "", text);
  EXPECT_EQ(cache.n_pages(), 3);
  EXPECT_EQ(cache.find("", text).n_pages, 3);
  EXPECT_EQ(cache.find("", text).n_idle, 3);
  EXPECT_EQ(cache.find("", tokens_from(100, 3 * kPage - 1)).n_pages, 2) << "half a page is none";
  std::vector<int32_t> other = text;
  other[kPage + 3] = 7;
  EXPECT_EQ(cache.find("", other).n_pages, 1) << "a page behind another prefix is another page";
  EXPECT_EQ(cache.find("", tokens_from(100 + kPage, kPage)).n_pages, 0);
  EXPECT_EQ(pool.n_free() + pool.n_idle(), 16);
}

TEST(PrefixCache, salts_do_not_see_each_other) {
  PagePool pool(16);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = tokens_from(0, 2 * kPage);
  add(pool, cache, "alice", text);
  EXPECT_EQ(cache.find("alice", text).n_pages, 2);
  EXPECT_EQ(cache.find("bob", text).n_pages, 0);
  EXPECT_EQ(cache.find("", text).n_pages, 0);
  add(pool, cache, "bob", text);
  EXPECT_EQ(cache.n_pages(), 4) << "each has pages of its own";
  EXPECT_EQ(cache.reclaim(2), 2);
  EXPECT_EQ(cache.find("alice", text).n_pages, 0) << "the older ones went";
  EXPECT_EQ(cache.find("bob", text).n_pages, 2);
}

TEST(PrefixCache, evicts_what_was_used_longest_ago_from_the_end_and_nothing_in_use) {
  PagePool pool(7);
  PrefixCache cache(pool);
  const std::vector<int32_t> a = tokens_from(0, 3 * kPage), b = tokens_from(1000, 3 * kPage);
  add(pool, cache, "", a);
  add(pool, cache, "", b);
  std::vector<int32_t> held;
  const PrefixChain chain = cache.attach(cache.find("", a), 2, held);  // a is used again
  EXPECT_EQ(cache.find("", a).n_idle, 1);
  std::vector<int32_t> taken;
  ASSERT_TRUE(pool.take(2, taken)) << "one was free, one is evicted";
  EXPECT_EQ(cache.find("", a).n_pages, 2) << "its third page was the oldest";
  ASSERT_TRUE(pool.take(2, taken));
  EXPECT_EQ(cache.find("", b).n_pages, 1) << "from the end";
  ASSERT_TRUE(pool.take(1, taken));
  EXPECT_FALSE(pool.take(1, taken)) << "what is left is in use";
  EXPECT_EQ(cache.find("", a).n_pages, 2);
  cache.touch(chain);
  pool.release(held);
  pool.release(taken);
  EXPECT_EQ(pool.n_free(), 5);
  EXPECT_EQ(pool.n_idle(), 2);
  cache.clear();
  EXPECT_EQ(pool.n_free(), 7);
}

TEST(PrefixCache, two_who_compute_the_same_page_end_up_with_one) {
  PagePool pool(8);
  PrefixCache cache(pool);
  const std::vector<int32_t> text = tokens_from(5, 2 * kPage);
  std::vector<int32_t> first, second;
  PrefixChain chain_a, chain_b;
  ASSERT_TRUE(pool.take(2, first));
  ASSERT_TRUE(pool.take(2, second));
  cache.extend(chain_a, "", text, kPage, first);
  cache.extend(chain_b, "", text, 2 * kPage, second);
  EXPECT_EQ(second[0], first[0]);
  cache.extend(chain_a, "", text, 2 * kPage, first);
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.n_free(), 6);
  EXPECT_EQ(pool.references(first[0]), 3);
  pool.release(first);
  pool.release(second);
  EXPECT_EQ(pool.n_idle(), 2);
}

TEST(PrefixCache, gives_every_page_back_when_it_goes) {
  PagePool pool(4);
  std::vector<int32_t> held;
  {
    PrefixCache cache(pool);
    add(pool, cache, "s", tokens_from(0, 2 * kPage));
    cache.attach(cache.find("s", tokens_from(0, 2 * kPage)), 1, held);
  }
  EXPECT_EQ(pool.n_free(), 3);
  pool.release(held);
  EXPECT_EQ(pool.n_free(), 4);
}

TEST(PrefixCache, a_page_that_finds_no_memory_leaves_nothing_behind) {
  const std::string salt = "one that does not fit into a string without memory of its own";
  const std::vector<int32_t> text = tokens_from(0, 2 * kPage);
  bool failed = true;
  int n_without_pages = 0, n_with_one = 0;
  for (long n = 1; failed; ++n) {
    PagePool pool(2);
    PrefixCache cache(pool);
    std::vector<int32_t> pages;
    ASSERT_TRUE(pool.take(2, pages));
    PrefixChain chain;
    failed = false;
    g_allocations_left = n;
    try {
      cache.extend(chain, salt, text, 2 * kPage, pages);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    g_allocations_left = 0;
    if (failed) ++(chain.n_pages == 0 ? n_without_pages : n_with_one);
    EXPECT_EQ(chain.n_pages == 2, !failed) << n;
    EXPECT_EQ(cache.n_pages(), chain.n_pages) << n;
    EXPECT_EQ(cache.n_salts(), chain.n_pages == 0 ? 0 : 1) << n;
    EXPECT_EQ(cache.find(salt, text).n_pages, chain.n_pages) << n;
    cache.extend(chain, salt, text, 2 * kPage, pages);
    EXPECT_EQ(cache.find(salt, text).n_pages, 2) << "with memory it goes on, " << n;
    cache.touch(chain);
    pool.release(pages);
    EXPECT_EQ(pool.n_idle(), 2) << n;
    cache.clear();
    EXPECT_EQ(pool.n_free(), 2) << n;
    EXPECT_EQ(cache.n_salts(), 0) << n;
  }
  EXPECT_GT(n_without_pages, 3);
  EXPECT_GT(n_with_one, 0);
}

// Every page has the same key, whatever its prefix: only comparing tokens and parents tells pages
// apart.
class Colliding : public PrefixCache {
 public:
  using PrefixCache::PrefixCache;

 protected:
  uint64_t key_of(uint64_t, const int32_t*) const override { return 42; }
};

// Sequences arrive, share, grow and leave, in a pool that is too small. A plain model keeps for
// each page the salt and the whole text up to its end.
template <typename Cache>
void no_sequence_ever_gets_a_page_of_another_text(uint32_t seed) {
  constexpr int32_t kPages = 24;
  struct Live {
    std::string salt;
    std::vector<int32_t> tokens, pages;
    PrefixChain chain;
    int32_t n_computed = 0;
  };
  PagePool pool(kPages);
  Cache cache(pool);
  std::map<int32_t, std::pair<std::string, std::vector<int32_t>>> content;
  std::vector<Live> live;
  std::mt19937 random(seed);
  const auto pick = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  int hits = 0, missed = 0, evictions = 0;
  for (int round = 0; round < 6000; ++round) {
    if (live.size() < 4 && pick(3) == 0) {
      Live next{.salt = pick(2) ? "a" : "b", .tokens = {}, .pages = {}, .chain = {}};
      // Few different pages, so that prefixes meet.
      for (int32_t page = 0, n = 1 + pick(4); page < n; ++page) {
        next.tokens.insert(next.tokens.end(), kPage, pick(3));
      }
      const PrefixCache::Prefix found = cache.find(next.salt, next.tokens);
      next.chain = cache.attach(found, found.n_pages, next.pages);
      ASSERT_EQ(next.pages.size(), static_cast<size_t>(found.n_pages));
      next.n_computed = found.n_pages * kPage;
      (found.n_pages > 0 ? hits : missed) += 1;
      for (int32_t i = 0; i < found.n_pages; ++i) {
        const auto& [salt, text] = content.at(next.pages[static_cast<size_t>(i)]);
        ASSERT_EQ(salt, next.salt);
        ASSERT_EQ(text,
                  std::vector<int32_t>(next.tokens.begin(), next.tokens.begin() + (i + 1) * kPage));
      }
      live.push_back(std::move(next));
    } else if (!live.empty() && pick(4) == 0) {
      const size_t i = static_cast<size_t>(pick(static_cast<int32_t>(live.size())));
      cache.touch(live[i].chain);
      pool.release(live[i].pages);
      live.erase(live.begin() + static_cast<ptrdiff_t>(i));
    } else if (!live.empty()) {
      Live& one = live[static_cast<size_t>(pick(static_cast<int32_t>(live.size())))];
      if (one.n_computed == static_cast<int32_t>(one.tokens.size())) {
        one.tokens.insert(one.tokens.end(), kPage, pick(3));
      }
      const int32_t cached_before = cache.n_pages();
      if (pool.take(1, one.pages)) {
        evictions += cache.n_pages() < cached_before;
        one.n_computed += kPage;
        content[one.pages.back()] = {one.salt,
                                     {one.tokens.begin(), one.tokens.begin() + one.n_computed}};
        cache.extend(one.chain, one.salt, one.tokens, one.n_computed, one.pages);
      }
    }
    std::set<int32_t> used;
    for (const Live& one : live) used.insert(one.pages.begin(), one.pages.end());
    ASSERT_EQ(pool.n_free() + pool.n_idle() + static_cast<int32_t>(used.size()), kPages);
    ASSERT_LE(cache.n_pages(), kPages);
  }
  EXPECT_GT(hits, 100);
  EXPECT_GT(missed, 100);
  EXPECT_GT(evictions, 100);
  for (Live& one : live) pool.release(one.pages);
  cache.clear();
  EXPECT_EQ(pool.n_free(), kPages);
  EXPECT_EQ(cache.n_pages(), 0);
}

TEST(PrefixCache, no_sequence_ever_gets_a_page_of_another_text) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    no_sequence_ever_gets_a_page_of_another_text<PrefixCache>(seed);
    no_sequence_ever_gets_a_page_of_another_text<Colliding>(seed);
  }
}

}  // namespace
}  // namespace specd
