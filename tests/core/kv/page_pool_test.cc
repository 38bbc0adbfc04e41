#include "core/kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/kv/block_table.h"

namespace specd {
namespace {

TEST(PagePool, takes_all_or_nothing) {
  PagePool pool(3);
  std::vector<int32_t> pages;
  EXPECT_FALSE(pool.take(4, pages));
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.n_free(), 3);
  EXPECT_TRUE(pool.take(3, pages));
  EXPECT_EQ(pool.n_free(), 0);
  EXPECT_TRUE(pool.take(0, pages));
  pool.release(pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.n_free(), 3);
}

// Against a plain model: every holder keeps its own list, a page's count is how often it is listed.
TEST(PagePool, a_page_is_free_exactly_when_nobody_holds_it) {
  PagePool pool(64);
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> holders(10);
  int shared = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t>& holder = holders[random() % holders.size()];
    switch (random() % 3) {
      case 0:
        pool.release(holder);
        break;
      case 1: {
        const int32_t free_before = pool.n_free();
        std::vector<int32_t> taken;
        const auto n = static_cast<int32_t>(random() % 9);
        ASSERT_EQ(pool.take(n, taken), n <= free_before);
        for (const auto& each : holders) {
          for (const int32_t page : taken) {
            ASSERT_EQ(std::count(each.begin(), each.end(), page), 0) << "it was held already";
          }
        }
        holder.insert(holder.end(), taken.begin(), taken.end());
        break;
      }
      default: {
        const std::vector<int32_t>& from = holders[random() % holders.size()];
        if (from.empty()) break;
        const int32_t page = from[random() % from.size()];
        pool.share(page);
        holder.push_back(page);
        ++shared;
      }
    }
    std::map<int32_t, int32_t> count;
    for (const auto& each : holders) {
      for (const int32_t page : each) ++count[page];
    }
    for (int32_t page = 0; page < pool.n_pages(); ++page) {
      ASSERT_EQ(pool.references(page), count.contains(page) ? count[page] : 0);
    }
    ASSERT_EQ(pool.n_free(), 64 - static_cast<int32_t>(count.size()));
  }
  EXPECT_GT(shared, 1000);
}

TEST(PagePool, asks_the_reclaimer_for_what_is_missing_and_no_more) {
  struct Hoard : PageReclaimer {
    PagePool* pool = nullptr;
    std::vector<int32_t> pages;
    int32_t reclaim(int32_t n_pages) override {
      int32_t freed = 0;
      for (; freed < n_pages && !pages.empty(); pages.pop_back())
        freed += pool->release(pages.back());
      return freed;
    }
  } hoard;
  PagePool pool(6);
  hoard.pool = &pool;
  pool.set_reclaimer(&hoard);
  ASSERT_TRUE(pool.take(4, hoard.pages));
  std::vector<int32_t> mine;
  EXPECT_TRUE(pool.take(2, mine));
  EXPECT_EQ(hoard.pages.size(), 4u) << "free pages go first";
  EXPECT_TRUE(pool.take(3, mine));
  EXPECT_EQ(hoard.pages.size(), 1u);
  EXPECT_FALSE(pool.take(2, mine));
  EXPECT_EQ(mine.size(), 5u);
}

TEST(PagePoolDeathTest, what_is_not_held_can_neither_be_released_nor_shared) {
  PagePool pool(2);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.take(1, pages));
  std::vector<int32_t> again = pages;
  pool.release(pages);
  EXPECT_DEATH(pool.release(again), "is not held");
  EXPECT_DEATH(pool.share(again[0]), "is not held");
  EXPECT_DEATH(pool.share(2), "is not held");
}

TEST(BlockTable, slots_follow_the_pages) {
  const BlockTable table{.pages = {7, 2}};
  EXPECT_EQ(table.capacity(), 32);
  EXPECT_EQ(table.physical(0), 7 * 16);
  EXPECT_EQ(table.physical(15), 7 * 16 + 15);
  EXPECT_EQ(table.physical(16), 2 * 16);
  EXPECT_EQ(pages_for(0), 0);
  EXPECT_EQ(pages_for(1), 1);
  EXPECT_EQ(pages_for(16), 1);
  EXPECT_EQ(pages_for(17), 2);
}

TEST(BlockTable, a_chain_moves_nothing) {
  const BlockTable table{.pages = {0, 1}};
  KvMoves moves;
  plan_compaction(table, 3, {0, 1, 2}, moves);
  EXPECT_TRUE(moves.from.empty());
}

// Against a plain model: tokens in an array of slots.
TEST(BlockTable, compaction_brings_every_accepted_path_into_place) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const BlockTable table{.pages = {5, 0, 3, 9}};
    std::vector<int> cache(10 * 16, -1);
    const int32_t root = static_cast<int32_t>(random() % 20);
    for (int32_t slot = 0; slot < table.capacity(); ++slot) {
      cache[static_cast<size_t>(table.physical(slot))] = 1000 + slot;
    }
    std::vector<int32_t> path;
    for (int32_t node = 0; node < 40; ++node) {
      if (random() % 4 == 0) path.push_back(node);
    }
    KvMoves moves;
    plan_compaction(table, root, path, moves);
    for (size_t i = 0; i < moves.from.size(); ++i) {
      cache[static_cast<size_t>(moves.to[i])] = cache[static_cast<size_t>(moves.from[i])];
    }
    for (int32_t slot = 0; slot <= root; ++slot) {
      ASSERT_EQ(cache[static_cast<size_t>(table.physical(slot))], 1000 + slot);
    }
    for (size_t i = 0; i < path.size(); ++i) {
      ASSERT_EQ(cache[static_cast<size_t>(table.physical(root + 1 + static_cast<int32_t>(i)))],
                1000 + root + 1 + path[i]);
    }
  }
}

}  // namespace
}  // namespace specd
