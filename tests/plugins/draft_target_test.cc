// What the drafter feeds to its model, and when, with a model that is a function of the text and
// refuses calls that break the contract.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <random>
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

FakeConfig config(int k) { return FakeConfig().set("model", "draft").set("draft_tokens", k); }

class DraftTargetDrafter : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& violation : host_.violations()) ADD_FAILURE() << violation;
  }
  // The session of a drafter's sequence must keep a prefix of its text: all but the last token.
  void expect_caught_up(const FakeDrafter& drafter, int handle) {
    const TokenList& text = drafter.tokens(handle);
    const TokenList& kept = host_.model().session.at(static_cast<uint64_t>(handle) + 1).kept;
    EXPECT_EQ(kept, text) << "every committed token is fed, once";
  }
  static TokenList sequence(int32_t from, int32_t n) {
    TokenList all;
    for (int32_t i = 0; i < n; ++i) all.push_back(from + i);
    return all;
  }
  FakeHost host_;
};

TEST_F(DraftTargetDrafter, the_chain_is_what_the_model_says) {
  FakeDrafter drafter(host_, chain_factory(), config(4));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  const int s = drafter.begin({7, 8, 20});
  const FakeDraft draft = drafter.propose(s);
  EXPECT_EQ(draft.token, sequence(21, 4));
  EXPECT_EQ(host_.model().rows, 3u + 3u) << "the last guess is not fed";
  expect_caught_up(drafter, s);
  EXPECT_EQ(drafter.propose(s, 2).token, sequence(21, 2))
      << "nothing was committed: the same again";
}

TEST_F(DraftTargetDrafter, one_row_follows_a_rejection_and_two_full_acceptance) {
  FakeDrafter drafter(host_, chain_factory(), config(3));
  const int s = drafter.begin(sequence(1, 10));
  uint64_t rows = 0;
  const auto rows_of_round = [&](const TokenList& expected) {
    rows = host_.model().rows;
    EXPECT_EQ(drafter.propose(s).token, expected);
    expect_caught_up(drafter, s);
    return host_.model().rows - rows;
  };
  EXPECT_EQ(rows_of_round({11, 12, 13}), 10u + 2u);
  drafter.commit(s, {11, 12, 13, 14}, {0, 1, 2, SPECD_NODE_ROOT});
  EXPECT_EQ(rows_of_round({15, 16, 17}), 2u + 2u) << "13 was never fed";
  drafter.commit(s, {15, 99}, {0, SPECD_NODE_ROOT});
  EXPECT_EQ(rows_of_round({100, 101, 102}), 1u + 2u);
  drafter.commit(s, {7}, {SPECD_NODE_ROOT});
  EXPECT_EQ(rows_of_round({8, 9, 10}), 1u + 2u);
  // Steps without a proposal: the text continues, and the model catches up at the next proposal.
  drafter.commit(s, {8, 9, 1}, {0, 1, SPECD_NODE_ROOT});
  drafter.commit(s, {2}, {SPECD_NODE_ROOT});
  EXPECT_EQ(rows_of_round({3, 4, 5}), 2u + 2u) << "8 and 9 were fed as guesses";
}

TEST_F(DraftTargetDrafter, random_acceptance_never_feeds_a_token_twice_nor_misses_one) {
  host_.model().next = [](const sdk::FakeModel::Text& text) {
    return static_cast<int32_t>((text.back() * 31 + static_cast<int32_t>(text.size())) % 1000);
  };
  FakeDrafter drafter(host_, chain_factory(), config(5));
  std::mt19937 random(3);
  TokenList prompt = sequence(5, 12);
  const int s = drafter.begin(prompt, SPECD_ATTACH_TOKENS);
  for (int round = 0; round < 300; ++round) {
    const uint64_t rows = host_.model().rows;
    const FakeDraft draft = drafter.propose(s, static_cast<int32_t>(random() % 6));
    expect_caught_up(drafter, s);
    const uint64_t guesses = draft.token.size();
    if (round > 0) {
      EXPECT_LE(host_.model().rows - rows, 2u + (guesses > 0 ? guesses - 1 : 0));
    }
    TokenList text = drafter.tokens(s);
    for (const int32_t token : draft.token) {
      ASSERT_EQ(token, host_.model().next(text)) << "round " << round;
      text.push_back(token);
    }
    const size_t accepted = draft.token.empty() ? 0 : random() % (draft.token.size() + 1);
    TokenList commit(draft.token.begin(), draft.token.begin() + static_cast<ptrdiff_t>(accepted));
    std::vector<int32_t> nodes(accepted);
    for (size_t i = 0; i < accepted; ++i) nodes[i] = static_cast<int32_t>(i);
    commit.push_back(static_cast<int32_t>(random() % 1000));
    nodes.push_back(SPECD_NODE_ROOT);
    ASSERT_EQ(drafter.commit(s, commit, nodes), SPECD_OK);
  }
}

TEST_F(DraftTargetDrafter, a_prompt_is_fed_in_chunks_and_nothing_is_guessed_before_its_end) {
  FakeDrafter drafter(host_, chain_factory(), config(2).set("prefill_chunk", 8));
  const int a = drafter.begin(sequence(1, 12)), b = drafter.begin(sequence(101, 9));
  std::vector<FakeDraft> drafts = drafter.propose_batch({a, b});
  EXPECT_EQ(drafts[0].count + drafts[1].count, 0);
  EXPECT_EQ(host_.model().rows, 8u);
  drafts = drafter.propose_batch({a, b});
  EXPECT_EQ(drafts[0].token, (TokenList{13, 14}));
  EXPECT_EQ(drafts[1].count, 0);
  EXPECT_EQ(host_.model().rows, 16u + 1u);
  drafts = drafter.propose_batch({a, b});
  EXPECT_EQ(drafts[0].token, (TokenList{13, 14}));
  EXPECT_EQ(drafts[1].token, (TokenList{110, 111}));
}

TEST_F(DraftTargetDrafter, the_batch_shares_one_forward_per_guess) {
  FakeDrafter drafter(host_, chain_factory(), config(4));
  const int a = drafter.begin({10}), b = drafter.begin({20}), c = drafter.begin({30});
  const std::vector<FakeDraft> drafts = drafter.propose_batch({a, b, c}, {4, 0, 2});
  EXPECT_EQ(drafts[0].token, sequence(11, 4));
  EXPECT_EQ(drafts[1].count, 0);
  EXPECT_EQ(drafts[2].token, sequence(31, 2));
  EXPECT_EQ(host_.model().forwards, 4u);
}

TEST_F(DraftTargetDrafter, an_unlikely_guess_is_the_last) {
  for (const bool noise : {true, false}) {
    host_.model().probability = [](const sdk::FakeModel::Text& text) {
      return text.back() == 12 ? 0.3f : 0.9f;
    };
    FakeDrafter drafter(
        host_, chain_factory(),
        config(6).set("p_min", 0.5).set("draw", noise ? "target_noise" : "most_likely"));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    host_.model().session.clear();
    const int s = drafter.begin({10});
    EXPECT_EQ(drafter.propose(s).token, (TokenList{11, 12, 13}));
  }
}

TEST_F(DraftTargetDrafter, a_session_that_lost_its_pages_is_fed_again) {
  FakeDrafter drafter(host_, chain_factory(), config(3));
  const int s = drafter.begin(sequence(1, 6));
  EXPECT_EQ(drafter.propose(s).token, sequence(7, 3));
  drafter.commit(s, {7, 8, 9, 10}, {0, 1, 2, SPECD_NODE_ROOT});
  host_.model().session.clear();
  const uint64_t rows = host_.model().rows;
  EXPECT_EQ(drafter.propose(s).token, sequence(11, 3));
  EXPECT_EQ(host_.model().rows - rows, 10u + 2u);
  expect_caught_up(drafter, s);
}

TEST_F(DraftTargetDrafter, without_pages_nothing_is_guessed_until_there_are_some) {
  FakeDrafter drafter(host_, chain_factory(), config(3));
  const int s = drafter.begin(sequence(1, 6));
  host_.model().exhausted = true;
  const FakeDraft none = drafter.propose(s);
  EXPECT_EQ(none.call_status, SPECD_OK);
  EXPECT_EQ(none.status, SPECD_OK);
  EXPECT_EQ(none.count, 0);
  host_.model().exhausted = false;
  EXPECT_EQ(drafter.propose(s).token, sequence(7, 3));
}

TEST_F(DraftTargetDrafter, a_text_beyond_the_models_context_is_not_drafted) {
  host_.model().max_positions = 8;
  FakeDrafter drafter(host_, chain_factory(), config(4));
  const int s = drafter.begin(sequence(1, 6));
  EXPECT_EQ(drafter.propose(s).token, sequence(7, 3)) << "the row of 9 would stand at position 8";
  drafter.commit(s, {7, 8, 9}, {0, 1, SPECD_NODE_ROOT});
  const uint64_t rows = host_.model().rows;
  EXPECT_EQ(drafter.propose(s).count, 0);
  EXPECT_EQ(drafter.propose(s).count, 0);
  EXPECT_EQ(host_.model().rows, rows) << "nothing is fed any more";
  const int other = drafter.begin({1});
  EXPECT_EQ(drafter.propose(other).token, sequence(2, 4));
}

TEST_F(DraftTargetDrafter, what_cannot_work_is_refused) {
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), FakeConfig()).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), FakeConfig().set("model", "other")).status(),
            SPECD_E_PRECONDITION);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(65)).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(2).set("p_min", 1.5)).status(),
            SPECD_E_CONFIG);
  host_.withhold_service(SPECD_SERVICE_MODEL);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(2)).status(), SPECD_E_UNSUPPORTED);
}

}  // namespace
}  // namespace specd
