#include "core/spec/draft_tree.h"

#include <gtest/gtest.h>

#include "core/spec/budget.h"

namespace specd {
namespace {

// root -> 0 -> {1, 2 -> 3}, root -> 4
DraftTree sample() {
  DraftTree tree;
  tree.token = {10, 11, 12, 13, 14};
  tree.parent = {-1, 0, 0, 2, -1};
  tree.depth = {1, 2, 2, 3, 1};
  tree.flags = {0, 0, 0, 0, 0};
  return tree;
}

TEST(DraftTree, a_path_runs_from_the_roots_child_to_the_node) {
  std::vector<int32_t> path;
  sample().path_to(3, path);
  EXPECT_EQ(path, (std::vector<int32_t>{0, 2, 3}));
  sample().path_to(4, path);
  EXPECT_EQ(path, (std::vector<int32_t>{4}));
}

TEST(DraftTree, only_the_first_chain_lies_in_place) {
  const DraftTree tree = sample();
  EXPECT_TRUE(tree.in_place(0));
  EXPECT_TRUE(tree.in_place(1));
  EXPECT_FALSE(tree.in_place(2));
  EXPECT_FALSE(tree.in_place(3));
  EXPECT_FALSE(tree.in_place(4));
}

TEST(DraftBudget, never_exceeds_what_the_text_can_use) {
  EXPECT_EQ(draft_budget(8, 1, true), 0);
  EXPECT_EQ(draft_budget(8, 0, false), 0);
  EXPECT_EQ(draft_budget(8, 4, true), 3);
  EXPECT_EQ(draft_budget(8, 100, true), 8);
  EXPECT_EQ(draft_budget(8, 4, false), 8) << "a tree's nodes are not all levels";
}

}  // namespace
}  // namespace specd
