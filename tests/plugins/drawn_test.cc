// The own draws of drafter_draft_target: their shape, and what they say that they were drawn from.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/plugins/draft_target_bundle.h"
#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

class Drawn : public testing::Test {
 protected:
  // What the model says behind a text: three tokens, more likely the longer it is; no others.
  static std::vector<float> law_of(const TokenList& text) {
    std::vector<float> law(8, -INFINITY);
    const auto first = static_cast<size_t>(text.size() % 5);
    law[first] = std::log(0.5f);
    law[first + 1] = std::log(0.3f);
    law[first + 2] = std::log(0.2f);
    return law;
  }
  void SetUp() override {
    host_.target().vocab_size = 8;
    host_.model().law = law_of;
    host_.model().next = [](const TokenList& text) {
      return static_cast<int32_t>(text.size() % 5);
    };
    sampled_.flags = 0;
    sampled_.temperature = 1;
  }
  void TearDown() override { EXPECT_TRUE(host_.violations().empty()) << host_.violations()[0]; }
  static FakeConfig config(int depth) {
    return FakeConfig().set("model", "draft").set("draft_tokens", depth).set("draw", "own");
  }
  static FakeConfig tree(int depth, int branches) {
    return config(depth).set("tree.branches", branches).set("tree.nodes", 64);
  }
  // Of the children of each node: they are drawn from what is handed on, which is the model's law.
  static void expect_law(const TokenList& text, const FakeDraft& draft) {
    ASSERT_EQ(draft.q.size(), draft.token.size() + 1);
    for (size_t node = 0; node < draft.token.size(); ++node) {
      TokenList above = text, path;
      for (int32_t at = draft.parent[node]; at >= 0; at = draft.parent[static_cast<size_t>(at)]) {
        path.insert(path.begin(), draft.token[static_cast<size_t>(at)]);
      }
      above.insert(above.end(), path.begin(), path.end());
      const std::vector<float>& q = draft.q[static_cast<size_t>(draft.parent[node] + 1)];
      EXPECT_EQ(q, law_of(above)) << node;
      EXPECT_GT(q[static_cast<size_t>(draft.token[node])], -INFINITY) << node;
    }
  }

  FakeHost host_;
  specd_sampling sampled_ = sdk::greedy_sampling();
};

TEST_F(Drawn, a_chain_says_what_each_guess_was_drawn_from) {
  FakeDrafter drafter(host_, chain_factory(), config(3));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  EXPECT_EQ(drafter.caps().draft_rule, uint32_t{SPECD_RULE_IID});
  EXPECT_EQ(drafter.caps().tree_mode, uint32_t{SPECD_TREE_CHAIN});
  const int a = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
  const int b = drafter.begin({1, 2, 3}, SPECD_ATTACH_FRESH, sampled_);
  const std::vector<FakeDraft> drafts = drafter.propose_batch({a, b}, {3, 2});
  EXPECT_EQ(drafts[0].token, (TokenList{2, 3, 4}));
  EXPECT_EQ(drafts[1].token, (TokenList{3, 4}));
  expect_law({1, 2}, drafts[0]);
  expect_law({1, 2, 3}, drafts[1]);
}

TEST_F(Drawn, siblings_stand_beside_the_chain_and_differ) {
  FakeDrafter drafter(host_, chain_factory(), tree(2, 3));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  EXPECT_EQ(drafter.caps().draft_rule, uint32_t{SPECD_RULE_NO_REPLACE});
  EXPECT_EQ(drafter.grant().max_nodes, 6u);
  std::set<TokenList> seen;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    sampled_.seed = seed;
    const int handle = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
    const FakeDraft draft = drafter.propose(handle);
    EXPECT_EQ(draft.parent, (TokenList{-1, 0, -1, -1, 0, 0}));
    expect_law({1, 2}, draft);
    for (const TokenList& level : {TokenList{0, 2, 3}, TokenList{1, 4, 5}}) {
      std::set<int32_t> tokens;
      for (const int32_t node : level) tokens.insert(draft.token[static_cast<size_t>(node)]);
      EXPECT_EQ(tokens.size(), 3u) << "without replacement";
    }
    seen.insert(draft.token);
    drafter.end(handle);
  }
  EXPECT_EQ(seen.size(), 4u) << "each level in both orders";
}

TEST_F(Drawn, a_level_has_fewer_siblings_where_no_other_token_can_be_drawn) {
  {
    FakeDrafter drafter(host_, chain_factory(), tree(2, 5));
    const int handle = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
    EXPECT_EQ(drafter.propose(handle).parent, (TokenList{-1, 0, -1, -1, 0, 0}));
    EXPECT_EQ(drafter.propose(handle, 3).parent, (TokenList{-1, 0, -1})) << "the end is cut";
    EXPECT_EQ(drafter.propose(handle, 1).parent, (TokenList{-1}));
  }
  FakeDrafter again(host_, chain_factory(), tree(2, 5).set("tree.replacement", true));
  EXPECT_EQ(again.caps().draft_rule, uint32_t{SPECD_RULE_IID});
  const int other = again.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
  EXPECT_EQ(again.propose(other).token.size(), 10u) << "with replacement a token may come again";
}

TEST_F(Drawn, a_greedy_request_and_the_end_of_a_text_need_no_siblings) {
  FakeDrafter drafter(host_, chain_factory(), tree(3, 3));
  const int greedy = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sdk::greedy_sampling());
  EXPECT_EQ(drafter.propose(greedy).parent, (TokenList{-1, 0, 1}));
  sampled_.tokens_left = 2;
  const int last = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
  EXPECT_EQ(drafter.propose(last).parent, (TokenList{-1, -1, -1}))
      << "the step adds a token itself";
}

TEST_F(Drawn, hands_nothing_on_where_nobody_asks) {
  FakeDrafter::Options options;
  options.wants_q = false;
  FakeDrafter drafter(host_, chain_factory(), config(3), options);
  const int handle = drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampled_);
  const FakeDraft draft = drafter.propose(handle);
  EXPECT_EQ(draft.token, (TokenList{2, 3, 4}));
  EXPECT_TRUE(draft.q.empty());
}

TEST_F(Drawn, settings_that_would_leave_out_guesses_by_what_they_are_are_refused) {
  for (const auto& [bad, words] : std::vector<std::pair<FakeConfig, std::string>>{
           {config(3).set("p_min", 0.5), "p_min: not with draw: own"},
           {tree(3, 2).set("tree.p_min", 0.5), "tree.p_min: not with draw: own"},
           {tree(3, 2).set("draw", "most_likely").set("tree.replacement", true),
            "tree.replacement: needs draw: own"},
           {config(3).set("draw", "lots"), "draw: expected target_noise, most_likely or own"}}) {
    FakeHost host;
    FakeDrafter refused(host, chain_factory(), bad);
    EXPECT_EQ(refused.status(), SPECD_E_CONFIG);
    ASSERT_FALSE(host.reports().empty());
    EXPECT_NE(host.reports()[0].text.find(words), std::string::npos) << host.reports()[0].text;
  }
}

}  // namespace
}  // namespace specd
