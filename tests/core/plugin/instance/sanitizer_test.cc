#include "core/plugin/instance/sanitizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>
#include <string>
#include <vector>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

struct Tree {
  int32_t n = 0;
  std::vector<int32_t> token, parent, flags;
};

// Slow and plain: judges every node from the root down, one rule after the other.
TreeCheck oracle(const Tree& tree, const TreeLimits& limits, std::vector<int32_t>* depths) {
  depths->clear();
  if (tree.n < 0) return {0, Defect::kCountNegative, -1};
  for (int32_t i = 0; i < tree.n; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i >= limits.node_budget) return {i, Defect::kCountOverBudget, i};
    if (tree.token[at] == SPECD_NO_TOKEN) return {i, Defect::kNone, -1};  // the drafter's own end
    if (tree.token[at] < 0 || tree.token[at] >= limits.vocab_size) {
      return {i, Defect::kTokenOutOfRange, i};
    }
    if (tree.parent[at] < -1 || tree.parent[at] >= i) return {i, Defect::kParentOutOfOrder, i};
    int32_t depth = 0;
    for (int32_t up = i; up != -1; up = tree.parent[static_cast<size_t>(up)]) ++depth;
    if (depth > limits.max_depth) return {i, Defect::kTooDeep, i};
    if (limits.probes && (tree.flags[at] < 0 || tree.flags[at] > 3)) {
      return {i, Defect::kUnknownFlag, i};
    }
    depths->push_back(depth);
  }
  return {tree.n, Defect::kNone, -1};
}

Defect verdict_oracle(const std::vector<int32_t>& path, int32_t n_accepted, int32_t next_token,
                      const Tree& tree, int32_t n_nodes, bool probes, int32_t vocab) {
  if (n_accepted < 0) return Defect::kCountNegative;
  if (n_accepted > static_cast<int32_t>(path.size())) return Defect::kPathTooLong;
  for (int32_t i = 0; i < n_accepted; ++i) {
    const int32_t node = path[static_cast<size_t>(i)];
    if (node < 0 || node >= n_nodes) return Defect::kPathNotInTree;
    const int32_t above = i == 0 ? -1 : path[static_cast<size_t>(i - 1)];
    if (tree.parent[static_cast<size_t>(node)] != above) return Defect::kPathNotInTree;
    if (probes && (tree.flags[static_cast<size_t>(node)] & 1) != 0) return Defect::kPathOfProbe;
  }
  return next_token >= 0 && next_token < vocab ? Defect::kNone : Defect::kNextTokenOutOfRange;
}

class Hostile {
 public:
  explicit Hostile(uint32_t seed) : random_(seed) {}
  int32_t below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(random_); }
  bool one_in(int32_t n) { return below(n) == 0; }
  int32_t nasty() {
    static constexpr int32_t kNasty[] = {-1, -2, 0,  1,         2,         7,
                                         63, 64, 65, INT32_MAX, INT32_MIN, 1 << 30};
    return kNasty[below(static_cast<int32_t>(std::size(kNasty)))];
  }
  // Well-formed but for a few nodes, so that deep parts of the check are reached too.
  Tree tree(int32_t capacity, int32_t vocab) {
    Tree made;
    made.n = one_in(12) ? nasty() : below(capacity + 1);
    const bool chain = one_in(3);
    for (int32_t i = 0; i < capacity; ++i) {
      made.token.push_back(one_in(60) ? nasty() : below(vocab));
      made.parent.push_back(one_in(60) ? nasty() : chain ? i - 1 : below(i + 1) - 1);
      made.flags.push_back(one_in(60) ? nasty() : below(4));
    }
    return made;
  }

 private:
  std::mt19937 random_;
};

TEST(Sanitizer, agrees_with_the_oracle_on_random_and_hostile_trees) {
  Hostile hostile(7);
  int good = 0, bad = 0;
  for (int round = 0; round < 120000; ++round) {
    TreeLimits limits;
    const int32_t capacity = 1 + hostile.below(64);
    limits.vocab_size = 1 + hostile.below(100);
    limits.node_budget = hostile.below(capacity + 1);
    limits.max_depth = 1 + hostile.below(64);
    limits.probes = hostile.one_in(2);
    const Tree tree = hostile.tree(capacity, limits.vocab_size);
    std::vector<int32_t> expected_depths;
    const TreeCheck expected = oracle(tree, limits, &expected_depths);
    // Exactly as long as allowed: a sanitizer sees a write or a read beyond it.
    std::vector<int32_t> depth(static_cast<size_t>(limits.node_budget), -7);
    const TreeCheck found =
        check_tree(tree.n, tree.token.data(), tree.parent.data(),
                   limits.probes ? tree.flags.data() : nullptr, limits, depth.data());
    ASSERT_EQ(found.n_nodes, expected.n_nodes) << "round " << round;
    ASSERT_EQ(found.defect, expected.defect) << "round " << round;
    ASSERT_EQ(found.node, expected.node) << "round " << round;
    depth.resize(static_cast<size_t>(found.n_nodes));
    ASSERT_EQ(depth, expected_depths) << "round " << round;
    ++(found.defect == Defect::kNone ? good : bad);
  }
  // Both kinds were really there.
  EXPECT_GT(good, 10000);
  EXPECT_GT(bad, 10000);
}

TEST(Sanitizer, agrees_with_the_oracle_on_random_and_hostile_verdicts) {
  Hostile hostile(8);
  int good = 0, bad = 0;
  for (int round = 0; round < 120000; ++round) {
    const int32_t capacity = 1 + hostile.below(32), vocab = 1 + hostile.below(50);
    Tree tree = hostile.tree(capacity, vocab);
    TreeLimits limits{vocab, capacity, 64, true};
    std::vector<int32_t> depth(static_cast<size_t>(capacity));
    const int32_t n = check_tree(tree.n, tree.token.data(), tree.parent.data(), tree.flags.data(),
                                 limits, depth.data())
                          .n_nodes;
    std::vector<int32_t> path;
    for (int32_t node = n == 0 ? -1 : hostile.below(n); node != -1;
         node = tree.parent[static_cast<size_t>(node)]) {
      path.insert(path.begin(), node);
    }
    auto n_accepted = static_cast<int32_t>(path.size());
    if (hostile.one_in(4) && !path.empty()) {
      path[static_cast<size_t>(hostile.below(n_accepted))] = hostile.nasty();
    }
    if (hostile.one_in(20)) n_accepted = hostile.nasty();
    const int32_t next = hostile.one_in(10) ? hostile.nasty() : hostile.below(vocab);
    const bool probes = hostile.one_in(3);
    const Defect found =
        check_verdict(n_accepted, path.data(), static_cast<int32_t>(path.size()), next, n,
                      tree.parent.data(), probes ? tree.flags.data() : nullptr, vocab);
    ASSERT_EQ(found, verdict_oracle(path, n_accepted, next, tree, n, probes, vocab))
        << "round " << round;
    ++(found == Defect::kNone ? good : bad);
  }
  EXPECT_GT(good, 10000);
  EXPECT_GT(bad, 10000);
}

TEST(Sanitizer, names_every_defect) {
  for (int i = 0; i <= static_cast<int>(Defect::kNextTokenOutOfRange); ++i) {
    EXPECT_STRNE(defect_name(static_cast<Defect>(i)), "unknown") << i;
  }
}

TEST(Sanitizer, huge_count_reads_no_more_than_the_budget) {
  const std::vector<int32_t> token = {1, 2}, parent = {-1, 0};
  std::vector<int32_t> depth(2);
  const TreeCheck check =
      check_tree(INT32_MAX, token.data(), parent.data(), nullptr, {10, 2, 8, false}, depth.data());
  EXPECT_EQ(check.n_nodes, 2);
  EXPECT_EQ(check.defect, Defect::kCountOverBudget);
  EXPECT_EQ(check.node, 2);
}

}  // namespace
}  // namespace specd
