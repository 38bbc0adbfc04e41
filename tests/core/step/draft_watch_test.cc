#include "core/step/draft_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/step/commit.h"
#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

using Ints = std::vector<int32_t>;
constexpr uint64_t kNow = 1'000'000'000'000;

class DraftWatchTest : public testing::Test {
 protected:
  // A text of 3 prompt tokens.
  ActiveSequence text(uint64_t number, int32_t max_tokens = 1000) {
    static const auto tokenizer = std::shared_ptr<const Tokenizer>(
        Tokenizer::load(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json").value());
    Request request;
    request.id = "req-" + std::to_string(number);
    request.max_tokens = max_tokens;
    ActiveSequence member;
    member.sequence = std::make_unique<Sequence>(number, request, Ints{1, 2, 3}, SamplingParams(),
                                                 Ints{}, tokenizer, [](const Event&) {});
    member.table.pages = Ints(100);
    member.n_computed = 2;
    return member;
  }
  // A step of these, in which each drafts root - 0 - 1 and root - 2 if it is among `drafting`, and the branch 0 - 1 is
  // accepted.
  void step(const std::vector<ActiveSequence*>& members,
            const std::vector<ActiveSequence*>& drafting) {
    for (ActiveSequence* member : members) {
      member->n_rows = 1;
      member->wants_token = true;
      member->place.root_logits = 0;
      member->n_taken = 0;
      member->tree.clear();
      member->verdict.reset();
    }
    for (ActiveSequence* member : drafting) {
      member->tree.token = {50, 51, 52};
      member->tree.parent = {-1, 0, -1};
      member->tree.depth = {1, 2, 1};
      member->tree.flags = {0, 0, SPECD_NODE_PROBE};
      member->verdict = Verdict{.accepted = {0, 1}, .next_token = 60};
    }
    commit(members, {99});
    watch_.record(members, ++n_steps_, kNow);
  }
  uint64_t followed() { return watch_.read(kNow).followed.number; }

  DraftWatch watch_;
  uint64_t n_steps_ = 0;
};

TEST_F(DraftWatchTest, a_step_keeps_its_tree_and_what_became_of_it) {
  ActiveSequence a = text(7);
  (void)watch_.read(kNow);
  step({&a}, {&a});
  step({&a}, {});
  const WatchedDrafts watched = watch_.read(kNow);
  EXPECT_EQ(watched.followed.number, 7u);
  EXPECT_EQ(watched.followed.id, "req-7");
  EXPECT_EQ(watched.followed.output_tokens, 4);
  ASSERT_EQ(watched.running.size(), 1u);
  ASSERT_EQ(watched.steps.size(), 2u);
  const WatchedStep& first = *watched.steps[0];
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(first.n_output, 0);
  EXPECT_EQ(first.root, 3);
  EXPECT_EQ(first.token, (Ints{50, 51, 52}));
  EXPECT_EQ(first.parent, (Ints{-1, 0, -1}));
  EXPECT_EQ(first.is_probe, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(first.accepted, (Ints{0, 1}));
  EXPECT_EQ(first.next_token, 60);
  const WatchedStep& second = *watched.steps[1];
  EXPECT_EQ(second.n_output, 3);
  EXPECT_EQ(second.root, 60);
  EXPECT_TRUE(second.token.empty());
  EXPECT_EQ(second.next_token, 99);
}

TEST_F(DraftWatchTest, where_a_text_ends_the_rest_of_the_path_is_no_part_of_it) {
  ActiveSequence a = text(7, 1);
  (void)watch_.read(kNow);
  step({&a}, {&a});
  const WatchedDrafts watched = watch_.read(kNow);
  ASSERT_EQ(watched.steps.size(), 1u);
  EXPECT_EQ(watched.steps[0]->accepted, Ints{0});
  EXPECT_EQ(watched.steps[0]->next_token, -1);
  EXPECT_TRUE(watched.running.empty()) << "it has ended";
}

TEST_F(DraftWatchTest, nothing_is_kept_before_a_look_or_long_after_it) {
  ActiveSequence a = text(7);
  step({&a}, {&a});
  EXPECT_TRUE(watch_.read(kNow).steps.empty());
  step({&a}, {&a});
  EXPECT_EQ(watch_.read(kNow).steps.size(), 1u);
  watch_.record({&a}, ++n_steps_, kNow + DraftWatch::kLeaseNs);
  EXPECT_EQ(watch_.read(kNow).steps.size(), 1u);
  watch_.follow(7);
  const WatchedDrafts later = watch_.read(kNow + DraftWatch::kLeaseNs);
  EXPECT_TRUE(later.steps.empty() && later.running.empty());
  EXPECT_EQ(later.followed.number, 0u);
  EXPECT_FALSE(later.is_picked);
}

TEST_F(DraftWatchTest, what_is_kept_is_bounded) {
  ActiveSequence a = text(7);
  std::vector<ActiveSequence> others;
  for (uint64_t i = 0; i < 100; ++i) others.push_back(text(100 + i));
  std::vector<ActiveSequence*> all{&a};
  for (ActiveSequence& each : others) all.push_back(&each);
  (void)watch_.read(kNow);
  for (int i = 0; i < 40; ++i) step(all, {&a});
  const WatchedDrafts watched = watch_.read(kNow);
  EXPECT_EQ(watched.running.size(), DraftWatch::kRunningMax);
  ASSERT_EQ(watched.steps.size(), DraftWatch::kStepsMax);
  EXPECT_EQ(watched.steps.back()->number, 40u);
  EXPECT_EQ(watched.steps.front()->number, 25u);
  // Trees of the largest size that the plugin boundary knows.
  constexpr size_t kNodes = 1024;
  for (int i = 0; i < 10; ++i) {
    a.n_taken = 1;
    a.tree.token = a.tree.parent = a.tree.depth = a.tree.flags = Ints(kNodes);
    watch_.record({&a}, ++n_steps_, kNow);
  }
  EXPECT_EQ(watch_.read(kNow).steps.size(), DraftWatch::kNodesMax / kNodes);
}

TEST_F(DraftWatchTest, the_newest_that_drafts_is_followed_until_it_ends) {
  ActiveSequence a = text(1, 8), b = text(2, 20), c = text(3);
  (void)watch_.read(kNow);
  step({&a, &b, &c}, {&b, &a});
  EXPECT_EQ(followed(), 2u) << "3 drafts nothing";
  for (int i = 0; i < 2; ++i) {
    step({&a, &b, &c}, {&a, &b, &c});
    EXPECT_EQ(followed(), 2u) << "a newer one takes no other's place";
  }
  while (b.sequence->finish() == FinishReason::kNone) step({&b, &c}, {&b, &c});
  EXPECT_EQ(followed(), 2u);
  step({&c}, {});
  EXPECT_EQ(followed(), 2u) << "its last trees are shown until another drafts";
  step({&c}, {&c});
  EXPECT_EQ(followed(), 3u);
  EXPECT_EQ(watch_.read(kNow).steps.size(), 1u);
}

TEST_F(DraftWatchTest, one_that_drafts_no_more_gives_way_to_one_that_does) {
  ActiveSequence a = text(1), b = text(2);
  (void)watch_.read(kNow);
  step({&a, &b}, {&b});
  for (uint64_t i = 0; i < DraftWatch::kIdleSteps; ++i) {
    step({&a, &b}, {&a});
    ASSERT_EQ(followed(), 2u) << i;
  }
  step({&a, &b}, {});
  EXPECT_EQ(followed(), 2u) << "nobody drafts";
  step({&a, &b}, {&a});
  EXPECT_EQ(followed(), 1u);
}

TEST_F(DraftWatchTest, a_picked_one_is_followed_whether_it_drafts_or_not_while_it_runs) {
  ActiveSequence a = text(1, 60), b = text(2);
  (void)watch_.read(kNow);
  step({&a, &b}, {&b});
  watch_.follow(1);
  EXPECT_TRUE(watch_.read(kNow).steps.empty());
  for (uint64_t i = 0; i < 2 * DraftWatch::kIdleSteps - 8; ++i) step({&a, &b}, {&b});
  EXPECT_EQ(followed(), 1u);
  EXPECT_TRUE(watch_.read(kNow).is_picked);
  while (a.sequence->finish() == FinishReason::kNone) step({&a, &b}, {});
  EXPECT_EQ(followed(), 1u);
  step({&b}, {&b});
  EXPECT_EQ(followed(), 2u);
  EXPECT_FALSE(watch_.read(kNow).is_picked);
}

TEST_F(DraftWatchTest, a_pick_that_does_not_run_is_given_up) {
  ActiveSequence a = text(1);
  (void)watch_.read(kNow);
  watch_.follow(4711);
  for (uint64_t i = 0; i <= DraftWatch::kIdleSteps; ++i) {
    step({&a}, {&a});
    ASSERT_EQ(followed(), 4711u) << i;
  }
  step({&a}, {&a});
  EXPECT_EQ(followed(), 1u);
}

TEST_F(DraftWatchTest, follow_0_lets_the_default_go_on) {
  ActiveSequence a = text(1), b = text(2);
  (void)watch_.read(kNow);
  step({&a, &b}, {&b});
  watch_.follow(1);
  step({&a, &b}, {&b});
  watch_.follow(0);
  EXPECT_FALSE(watch_.read(kNow).is_picked);
  for (uint64_t i = 0; i <= DraftWatch::kIdleSteps + 1; ++i) step({&a, &b}, {&b});
  EXPECT_EQ(followed(), 2u) << "1 drafts nothing";
}

}  // namespace
}  // namespace specd
