#include "core/step/commit.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

class CommitTest : public testing::Test {
 protected:
  // Decodes after the prompt {1, 2, 3}; nodes: root - 0 - 1 and root - 2 - 3.
  ActiveSequence decoding(int32_t max_tokens) {
    static const auto tokenizer = std::shared_ptr<const Tokenizer>(
        Tokenizer::load(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json").value());
    Request request;
    request.max_tokens = max_tokens;
    ActiveSequence member;
    member.sequence =
        std::make_unique<Sequence>(1, request, std::vector<int32_t>{1, 2, 3}, SamplingParams(),
                                   std::vector<int32_t>{}, tokenizer, [](const Event&) {});
    member.table.pages = {4};
    member.n_computed = 2;
    member.n_rows = 1;
    member.wants_token = true;
    member.tree.token = {50, 51, 52, 53};
    member.tree.parent = {-1, 0, -1, 2};
    member.tree.depth = {1, 2, 1, 2};
    member.tree.flags = {0, 0, 0, 0};
    member.place.root_logits = 0;
    return member;
  }
  static void expect_balance(const ActiveSequence& member, int64_t accepted, int64_t rejected,
                             int64_t discarded) {
    const Usage& usage = member.sequence->usage;
    EXPECT_EQ(usage.accepted_tokens, accepted);
    EXPECT_EQ(usage.rejected_tokens, rejected);
    EXPECT_EQ(usage.discarded_tokens, discarded);
    EXPECT_EQ(usage.draft_tokens, accepted + rejected + discarded);
  }
};

using Ints = std::vector<int32_t>;

TEST_F(CommitTest, the_accepted_branch_and_the_verdicts_token_follow_the_text) {
  ActiveSequence member = decoding(10);
  member.verdict = Verdict{.accepted = {2, 3}, .next_token = 60};
  const KvMoves moves = commit({&member}, {99});
  EXPECT_EQ(member.sequence->tokens(), (Ints{1, 2, 3, 52, 53, 60}));
  EXPECT_EQ(member.n_taken, 3);
  EXPECT_EQ(member.n_computed, 5);
  // Nodes 2 and 3 move from slots 5 and 6 of page 4 to right after the root, which is in slot 2.
  EXPECT_EQ(moves.from, (Ints{69, 70}));
  EXPECT_EQ(moves.to, (Ints{67, 68}));
  expect_balance(member, 2, 2, 0);
}

TEST_F(CommitTest, a_chain_in_place_moves_nothing) {
  ActiveSequence member = decoding(10);
  member.verdict = Verdict{.accepted = {0, 1}, .next_token = 60};
  EXPECT_TRUE(commit({&member}, {99}).from.empty());
  EXPECT_EQ(member.sequence->tokens(), (Ints{1, 2, 3, 50, 51, 60}));
}

TEST_F(CommitTest, without_a_verdict_the_token_drawn_at_the_root_is_emitted) {
  ActiveSequence member = decoding(10);
  EXPECT_TRUE(commit({&member}, {99}).from.empty());
  EXPECT_EQ(member.sequence->tokens(), (Ints{1, 2, 3, 99}));
  EXPECT_EQ(member.n_computed, 3);
  expect_balance(member, 0, 4, 0);
}

TEST_F(CommitTest, what_is_accepted_behind_the_end_of_the_text_is_discarded) {
  ActiveSequence member = decoding(1);
  member.verdict = Verdict{.accepted = {0, 1}, .next_token = 60};
  commit({&member}, {99});
  EXPECT_EQ(member.sequence->tokens(), (Ints{1, 2, 3, 50}));
  EXPECT_EQ(member.sequence->finish(), FinishReason::kLength);
  expect_balance(member, 1, 2, 1);
}

TEST_F(CommitTest, probes_are_discarded) {
  ActiveSequence member = decoding(10);
  member.tree.flags = {0, 0, SPECD_NODE_PROBE, SPECD_NODE_PROBE};
  member.verdict = Verdict{.accepted = {0}, .next_token = 60};
  commit({&member}, {99});
  expect_balance(member, 1, 1, 2);
}

TEST_F(CommitTest, logits_that_are_not_finite_fail_their_sequence_alone) {
  ActiveSequence bad = decoding(10), good = decoding(10);
  bad.verdict = Verdict{.accepted = {0}, .next_token = 60};
  good.place.root_logits = 1;
  commit({&bad, &good}, {-1, 99});
  EXPECT_EQ(bad.sequence->finish(), FinishReason::kError);
  EXPECT_EQ(bad.sequence->error().message(), "the model's logits at position 2 are not finite");
  EXPECT_EQ(bad.sequence->tokens(), (Ints{1, 2, 3}));
  EXPECT_EQ(good.sequence->tokens(), (Ints{1, 2, 3, 99}));
}

TEST_F(CommitTest, a_sequence_that_ended_meanwhile_takes_nothing) {
  ActiveSequence member = decoding(10);
  member.verdict = Verdict{.accepted = {0}, .next_token = 60};
  member.sequence->fail(FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
  EXPECT_TRUE(commit({&member}, {99}).from.empty());
  EXPECT_EQ(member.sequence->tokens(), (Ints{1, 2, 3}));
  expect_balance(member, 0, 0, 4);
  EXPECT_EQ(member.sequence->usage.steps, 0);
}

TEST_F(CommitTest, a_prompt_chunk_only_counts_its_rows) {
  ActiveSequence member = decoding(10);
  member.tree.clear();
  member.n_computed = 0;
  member.n_rows = 2;
  member.wants_token = false;
  commit({&member}, {});
  EXPECT_EQ(member.n_computed, 2);
  EXPECT_EQ(member.sequence->size(), 3);
}

}  // namespace
}  // namespace specd
