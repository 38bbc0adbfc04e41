#include "core/plugin/beside/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

struct Scored {
  int32_t n_nodes, n_accepted;
  bool operator==(const Scored&) const = default;
};

class ScoreTest : public testing::Test {
 protected:
  void commit(uint32_t slot, int32_t first, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) score_.committed(slot, first++, token);
  }
  bool chain(uint32_t slot, int32_t root, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> parents;
    for (size_t i = 0; i < tokens.size(); ++i) parents.push_back(static_cast<int32_t>(i) - 1);
    return score_.proposed(slot, root, 16, static_cast<int32_t>(tokens.size()), tokens.data(),
                           parents.data(), nullptr);
  }
  std::vector<Scored> scored_;
  std::vector<std::string> defects_;
  ProposalScore score_{4,
                       {.vocab_size = 100, .max_depth = 16},
                       [this](int32_t n_nodes, int32_t n_accepted) {
                         scored_.push_back({n_nodes, n_accepted});
                       },
                       [this](const char* defect, int32_t node) {
                         defects_.push_back(std::string(defect) + " " + std::to_string(node));
                       }};
};

TEST_F(ScoreTest, a_chain_is_accepted_as_far_as_the_text_goes_with_it) {
  chain(0, 10, {1, 2, 3});
  commit(0, 11, {1});
  EXPECT_TRUE(scored_.empty()) << "not decided yet";
  commit(0, 12, {2, 9});
  EXPECT_EQ(scored_, (std::vector<Scored>{{3, 2}}));
  chain(0, 13, {4});
  commit(0, 14, {4});
  EXPECT_EQ(scored_.back(), (Scored{1, 1})) << "a leaf needs no token behind it";
  chain(0, 14, {5});
  commit(0, 15, {6});
  EXPECT_EQ(scored_.back(), (Scored{1, 0}));
}

TEST_F(ScoreTest, proposals_of_several_steps_may_be_open_at_once) {
  chain(1, 0, {1, 2, 3, 4});
  chain(1, 2, {3, 4, 5});
  chain(2, 0, {7});
  commit(1, 1, {1, 2, 3, 4, 6});
  EXPECT_EQ(scored_, (std::vector<Scored>{{4, 4}, {3, 2}}));
  commit(2, 1, {7});
  EXPECT_EQ(scored_.size(), 3u);
}

TEST_F(ScoreTest, one_that_is_not_decided_when_its_sequence_ends_does_not_count) {
  chain(0, 0, {1, 2});
  commit(0, 1, {1});
  score_.ended(0);
  commit(0, 2, {2});
  EXPECT_TRUE(scored_.empty());
}

TEST_F(ScoreTest, a_defect_cuts_and_is_told) {
  EXPECT_TRUE(chain(0, 0, {1, 100, 2}));
  EXPECT_EQ(defects_.size(), 1u);
  commit(0, 1, {1});
  EXPECT_EQ(scored_, (std::vector<Scored>{{1, 1}}));
  EXPECT_FALSE(chain(0, 1, {-7}));
  EXPECT_TRUE(chain(0, 1, {})) << "an empty one is fine";
}

TEST_F(ScoreTest, a_probe_is_never_accepted) {
  const std::vector<int32_t> token{1, 1}, parent{-1, -1}, flags{SPECD_NODE_PROBE, 0};
  ProposalScore score(
      1, {.vocab_size = 100, .max_depth = 16, .probes = true},
      [this](int32_t n_nodes, int32_t n_accepted) {
        scored_.push_back({n_nodes, n_accepted});
      },
      [](const char*, int32_t) {});
  score.proposed(0, 0, 2, 1, token.data(), parent.data(), flags.data());
  score.committed(0, 1, 1);
  score.proposed(0, 1, 2, 2, token.data(), parent.data(), flags.data());
  score.committed(0, 2, 1);
  EXPECT_EQ(scored_, (std::vector<Scored>{{1, 0}, {2, 1}}));
}

// Against the definition: the deepest node whose path from the root is the text.
TEST_F(ScoreTest, random_trees_agree_with_a_search_over_all_paths) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> text;
    for (int i = 0; i < 20; ++i) text.push_back(static_cast<int32_t>(random() % 2));
    const auto n = static_cast<int32_t>(1 + random() % 16);
    std::vector<int32_t> token, parent, depth;
    for (int32_t i = 0; i < n; ++i) {
      token.push_back(static_cast<int32_t>(random() % 2));
      parent.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(i + 1)) - 1);
      depth.push_back(parent[i] < 0 ? 1 : depth[static_cast<size_t>(parent[i])] + 1);
    }
    int32_t best = 0;
    for (int32_t i = 0; i < n; ++i) {
      bool is_text = true;
      for (int32_t at = i; at >= 0; at = parent[static_cast<size_t>(at)]) {
        is_text = is_text && token[static_cast<size_t>(at)] ==
                                 text[static_cast<size_t>(depth[static_cast<size_t>(at)])];
      }
      // Of equal siblings the first is meant, as a verifier walks.
      if (is_text) best = std::max(best, depth[static_cast<size_t>(i)]);
    }
    // A tree with equal siblings may have its longest path below the second one.
    bool has_twins = false;
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t j = 0; j < i; ++j) {
        has_twins =
            has_twins || (parent[static_cast<size_t>(i)] == parent[static_cast<size_t>(j)] &&
                          token[static_cast<size_t>(i)] == token[static_cast<size_t>(j)]);
      }
    }
    if (has_twins) continue;
    scored_.clear();
    score_.proposed(3, 0, n, n, token.data(), parent.data(), nullptr);
    commit(3, 1, {text.begin() + 1, text.end()});
    ASSERT_EQ(scored_, (std::vector<Scored>{{n, best}})) << round;
  }
}

}  // namespace
}  // namespace specd
