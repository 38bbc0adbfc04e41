#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <random>

namespace specd {
namespace {

const specd_factory& match_factory() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/verifier_match/verifier_match.so");
  return loaded.factory("match");
}

// Walks down from the root: to the first ordinary child that equals the row's token, until there
// is none.
sdk::FakeVerdict oracle(const sdk::FakeTree& tree) {
  sdk::FakeVerdict verdict;
  int32_t at = -1;
  for (;;) {
    verdict.next_token = tree.row_token[static_cast<std::size_t>(at + 1)];
    int32_t found = -1;
    for (std::size_t i = tree.token.size(); i-- > 0;) {
      if (tree.parent[i] == at && tree.token[i] == verdict.next_token &&
          (tree.flags[i] & SPECD_NODE_PROBE) == 0) {
        found = static_cast<int32_t>(i);
      }
    }
    if (found < 0) return verdict;
    verdict.path.push_back(found);
    at = found;
  }
}

sdk::FakeTree random_tree(std::mt19937& random) {
  sdk::FakeTree tree;
  const std::size_t n = random() % 40;
  const int vocabulary = 1 + static_cast<int>(random() % 4);
  const auto token = [&] {
    return static_cast<int32_t>(random() % static_cast<unsigned>(vocabulary));
  };
  tree.row_token.push_back(token());
  for (std::size_t i = 0; i < n; ++i) {
    // Mostly near the end, so that the trees become deep.
    const int back = static_cast<int>(random() % 4);
    tree.parent.push_back(std::max(-1, static_cast<int>(i) - 1 - back));
    tree.token.push_back(token());
    tree.flags.push_back(random() % 4 == 0 ? SPECD_NODE_PROBE : 0);
    tree.row_token.push_back(token());
  }
  return tree;
}

TEST(MatchVerifier, accepts_what_a_walk_over_the_tree_accepts) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, match_factory(), sdk::FakeConfig());
  ASSERT_EQ(verifier.status(), SPECD_OK);
  std::mt19937 random(1);
  std::size_t accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<sdk::FakeTree> trees;
    for (unsigned i = 0; i <= random() % 4; ++i) trees.push_back(random_tree(random));
    const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(trees);
    for (std::size_t i = 0; i < trees.size(); ++i) {
      const sdk::FakeVerdict expected = oracle(trees[i]);
      ASSERT_EQ(verdicts[i].path, expected.path);
      ASSERT_EQ(verdicts[i].next_token, expected.next_token);
      ASSERT_EQ(verdicts[i].state, 0);
      accepted += expected.path.size();
    }
  }
  EXPECT_GT(accepted, 2000u);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
}

TEST(MatchVerifier, promises_identical_text_for_every_draft_rule_and_tree) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, match_factory(), sdk::FakeConfig());
  for (const uint32_t guarantee : verifier.caps().guarantee) {
    EXPECT_EQ(guarantee, static_cast<uint32_t>(SPECD_GUARANTEE_IDENTICAL));
  }
  EXPECT_EQ(verifier.caps().tree_modes, 7u);
  EXPECT_EQ(verifier.caps().max_nodes, 0u);
}

TEST(MatchVerifier, first_of_equal_siblings_wins_and_a_probe_is_never_accepted) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, match_factory(), sdk::FakeConfig());
  // Probes 0, 1 and 2 have the right token; 3 follows 1, and 4 follows 2.
  const sdk::FakeTree tree{
      {5, 5, 5, 6, 6}, {-1, -1, -1, 1, 2}, {1, 0, 0, 0, 0}, {5, 6, 6, 7, 8, 9}, 0};
  const sdk::FakeVerdict verdict = verifier.verify(tree);
  EXPECT_EQ(verdict.path, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(verdict.next_token, 8);
}

}  // namespace
}  // namespace specd
