#include "specd/kernels/tree.h"

#include <algorithm>
#include <climits>
#include <random>

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

class Tree : public testing::Test {
 protected:
  int32_t below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  std::mt19937 random_{5};
  WorkerPool pool_{2};
  CpuStream stream_{pool_};
  const Ops& ops_ = cpu_ops(Isa::kScalar);
};

// Walks down from the root, one step at a time.
std::vector<int32_t> walk(int32_t n, const int32_t* token, const int32_t* parent,
                          const int32_t* flags, const int32_t* wanted, int32_t skip, int32_t room,
                          int32_t* last) {
  std::vector<int32_t> path;
  int32_t at = -1;
  while (static_cast<int32_t>(path.size()) < room) {
    int32_t child = -1;
    for (int32_t i = n - 1; i > at; --i) {
      const bool skipped = flags != nullptr && (flags[i] & skip) != 0;
      if (!skipped && parent[i] == at && token[i] == wanted[at + 1]) child = i;
    }
    if (child < 0) break;
    path.push_back(at = child);
  }
  *last = wanted[at + 1];
  return path;
}

TEST_F(Tree, the_walk_is_that_from_the_root_down_whatever_the_columns_hold) {
  constexpr int32_t kSequences = 7, kCapacity = 24;
  size_t longest = 0;
  for (int round = 0; round < 500; ++round) {
    const int32_t room = 1 + below(10);
    std::vector<int32_t> n_nodes, token, parent, flags, wanted;
    for (int32_t s = 0; s < kSequences; ++s) {
      n_nodes.push_back(round % 50 == 49 ? INT32_MAX : below(kCapacity + 1));
      wanted.push_back(below(3));
      for (int32_t i = 0; i < kCapacity; ++i) {
        token.push_back(below(3));
        parent.push_back(below(40) == 0 ? INT_MIN : i - 1 - below(std::min(i + 1, 3)));
        flags.push_back(below(4));
        wanted.push_back(below(3));
      }
    }
    std::vector<int32_t> n_path(kSequences, -7), last(kSequences, -7);
    std::vector<int32_t> path(static_cast<size_t>(kSequences * room) + 1, -7);
    const bool with_flags = round % 2 == 0;
    ops_.walk_tree(stream_, {.n_nodes = n_nodes.data(),
                             .token = token.data(),
                             .parent = parent.data(),
                             .flags = with_flags ? flags.data() : nullptr,
                             .wanted = wanted.data(),
                             .n_path = n_path.data(),
                             .path = path.data(),
                             .last = last.data(),
                             .n = kSequences,
                             .capacity = kCapacity,
                             .path_capacity = room,
                             .skip_flags = 1});
    EXPECT_EQ(path.back(), -7);
    for (int32_t s = 0; s < kSequences; ++s) {
      const int32_t row = s * kCapacity;
      int32_t expected_last = 0;
      const std::vector<int32_t> expected =
          walk(std::min(n_nodes[s], kCapacity), &token[row], &parent[row],
               with_flags ? &flags[row] : nullptr, &wanted[s * (kCapacity + 1)], 1, room,
               &expected_last);
      ASSERT_EQ(n_path[s], static_cast<int32_t>(expected.size()));
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), &path[s * room]));
      ASSERT_EQ(last[s], expected_last);
      longest = std::max(longest, expected.size());
    }
  }
  EXPECT_GT(longest, 4u);
}

TEST_F(Tree, nodes_end_before_the_first_that_is_no_token) {
  const std::vector<int32_t> token = {1, 2, 3,  4, 1, -1, 3, 4, 9, 1, 1, 1,
                                      1, 2, 10, 1, 1, 2,  3, 4, 1, 2, 3, 4};
  std::vector<int32_t> n = {4, 4, 3, 4, INT32_MAX, -5};
  ops_.clamp_nodes(stream_,
                   {.n_nodes = n.data(), .token = token.data(), .n = 6, .capacity = 4, .vocab = 9});
  EXPECT_EQ(n, (std::vector<int32_t>{4, 1, 0, 2, 4, 0}));
}

TEST_F(Tree, tokens_are_picked_and_what_is_none_is_replaced) {
  const std::vector<int32_t> source = {5, -1, 7, 100, INT32_MIN}, from = {4, 2, 0, 3, 1},
                             to = {1, 0, 5, 3, 2};
  std::vector<int32_t> target(6, 42);
  ops_.pick_tokens(stream_, {.source = source.data(),
                             .from = from.data(),
                             .target = target.data(),
                             .to = to.data(),
                             .n = 5,
                             .vocab = 100,
                             .otherwise = -3});
  EXPECT_EQ(target, (std::vector<int32_t>{7, -3, -3, -3, 42, 5}));
}

}  // namespace
}  // namespace specd::kernels
