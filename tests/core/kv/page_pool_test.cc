#include "core/kv/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

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
  pool.give_back(pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.n_free(), 3);
}

TEST(PagePool, never_hands_a_page_to_two_holders) {
  PagePool pool(64);
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> holders(10);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t>& holder = holders[random() % holders.size()];
    if (random() % 2 == 0) {
      pool.give_back(holder);
    } else {
      (void)pool.take(static_cast<int32_t>(random() % 9), holder);
    }
    std::set<int32_t> seen;
    size_t held = 0;
    for (const auto& each : holders) {
      seen.insert(each.begin(), each.end());
      held += each.size();
    }
    ASSERT_EQ(seen.size(), held);
    ASSERT_EQ(pool.n_free(), 64 - static_cast<int32_t>(held));
  }
}

TEST(PagePoolDeathTest, giving_back_twice_is_a_programmers_error) {
  PagePool pool(2);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.take(1, pages));
  std::vector<int32_t> again = pages;
  pool.give_back(pages);
  EXPECT_DEATH(pool.give_back(again), "is not held");
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
  std::vector<int32_t> from, to;
  plan_compaction(table, 3, {0, 1, 2}, from, to);
  EXPECT_TRUE(from.empty());
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
    std::vector<int32_t> from, to;
    plan_compaction(table, root, path, from, to);
    for (size_t i = 0; i < from.size(); ++i) {
      cache[static_cast<size_t>(to[i])] = cache[static_cast<size_t>(from[i])];
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
