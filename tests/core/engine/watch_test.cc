// What steps record of drafts: put together it is the text that clients get, whatever drafts.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

using Ints = std::vector<int32_t>;

// Somebody who looks all the time: steps record for two seconds after a look, and some builds are slow.
class Viewer {
 public:
  explicit Viewer(Engine& engine) {
    (void)engine.watch_drafts();
    thread_ = std::thread([this, &engine] {
      while (!is_over_) {
        (void)engine.watch_drafts();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  }
  ~Viewer() {
    is_over_ = true;
    thread_.join();
  }
  Viewer(const Viewer&) = delete;
  Viewer& operator=(const Viewer&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

class WatchDrafts : public EngineTest {
 protected:
  void start_routes() {
    EngineOptions o = options("pico-target");
    o.draft_models = {{.name = "small", .path = std::string(SPECD_TEST_ZOO) + "/pico-draft"}};
    o.routes = {
        route("lookup", plugin("specd.drafter.prompt_lookup"), 5),
        route("suffix", plugin("specd.drafter.suffix", {{"max_branches", 3}}), 12),
        route("lookahead",
              plugin("specd.drafter.lookahead", {{"window", 2}, {"ngram", 3}, {"guesses", 2}}), 8),
        route("tree",
              plugin("specd.drafter.draft_target", {{"model", "small"},
                                                    {"draft_tokens", 3},
                                                    {"tree", {{"branches", 3}, {"nodes", 10}}}}),
              10)};
    start(o);
  }

  // Checks the tree, and appends what it added to the text.
  static void check_step(const WatchedStep& step, Ints& text) {
    const auto n = static_cast<int32_t>(step.token.size());
    ASSERT_EQ(step.parent.size(), step.token.size());
    ASSERT_EQ(step.is_probe.size(), step.token.size());
    for (int32_t i = 0; i < n; ++i) {
      ASSERT_GE(step.parent[static_cast<size_t>(i)], -1);
      ASSERT_LT(step.parent[static_cast<size_t>(i)], i) << "parents come first";
    }
    int32_t above = -1;
    for (const int32_t node : step.accepted) {
      ASSERT_LT(node, n);
      EXPECT_EQ(step.parent[static_cast<size_t>(node)], above) << "a path from the root down";
      EXPECT_FALSE(step.is_probe[static_cast<size_t>(node)]);
      above = node;
      text.push_back(step.token[static_cast<size_t>(node)]);
    }
    if (step.next_token >= 0) text.push_back(step.next_token);
  }
};

TEST_F(WatchDrafts, accepted_nodes_and_next_tokens_of_all_steps_are_the_text) {
  start_routes();
  const Viewer viewer(*engine_);
  int64_t n_drafted = 0;
  bool has_branch = false, has_probe = false;
  for (const char* name : {"off", "lookup", "suffix", "lookahead", "tree"}) {
    for (const std::string& prompt : prompts()) {
      Request asked = request(prompt, name, 16, 0.7F, 3);
      asked.records_drafts = true;
      Pending pending;
      pending.hold_at(1);
      const auto ticket = engine_->submit(asked, pending.sink());
      ASSERT_TRUE(ticket.ok());
      pending.wait_for_tokens(1);
      engine_->follow_drafts(ticket.value().number);
      pending.let_go();
      const Outcome done = pending.wait();
      const WatchedDrafts watched = engine_->watch_drafts();
      ASSERT_EQ(watched.followed.number, ticket.value().number);
      EXPECT_EQ(watched.followed.id, ticket.value().id);
      EXPECT_EQ(watched.followed.route, name);
      EXPECT_EQ(watched.followed.output_tokens, static_cast<int32_t>(done.tokens.size()));
      EXPECT_TRUE(watched.running.empty());
      ASSERT_FALSE(watched.steps.empty());
      // The first token may have come before the request was followed.
      const auto n_before = static_cast<size_t>(watched.steps.front()->n_output);
      ASSERT_LE(n_before, 1u);
      Ints text(done.tokens.begin(), done.tokens.begin() + static_cast<ptrdiff_t>(n_before));
      std::vector<StepDrafts> drafts;
      int32_t last_token = ticket.value().prompt_tokens.back();
      for (const auto& step : watched.steps) {
        EXPECT_EQ(step->n_output, static_cast<int32_t>(text.size()));
        EXPECT_EQ(step->root, text.empty() ? last_token : text.back());
        ASSERT_NO_FATAL_FAILURE(check_step(*step, text));
        const auto drafted = static_cast<int32_t>(step->token.size());
        if (drafted > 0) drafts.push_back({drafted, static_cast<int32_t>(step->accepted.size())});
        for (size_t i = 0; i < step->token.size(); ++i) {
          has_branch = has_branch || (i > 0 && step->parent[i] != static_cast<int32_t>(i) - 1);
          has_probe = has_probe || step->is_probe[i];
        }
        n_drafted += drafted;
      }
      EXPECT_EQ(text, done.tokens) << name;
      ASSERT_EQ(drafts.size(), done.usage.drafts.size()) << name;
      for (size_t i = 0; i < drafts.size(); ++i) {
        EXPECT_EQ(drafts[i].drafted, done.usage.drafts[i].drafted);
        EXPECT_EQ(drafts[i].accepted, done.usage.drafts[i].accepted);
      }
    }
  }
  EXPECT_GT(n_drafted, 100);
  EXPECT_TRUE(has_branch && has_probe) << "or this says nothing of trees";
}

TEST_F(WatchDrafts, of_a_longer_text_the_last_steps_are_kept) {
  start_routes();
  const Viewer viewer(*engine_);
  const Outcome done = run(request(prompts()[1], "tree", 100));
  const WatchedDrafts watched = engine_->watch_drafts();
  ASSERT_EQ(watched.steps.size(), 16u);
  Ints text;
  for (const auto& step : watched.steps) ASSERT_NO_FATAL_FAILURE(check_step(*step, text));
  ASSERT_LT(text.size(), done.tokens.size());
  EXPECT_EQ(text, Ints(done.tokens.end() - static_cast<ptrdiff_t>(text.size()), done.tokens.end()));
}

TEST_F(WatchDrafts, nothing_is_recorded_for_nobody) {
  start_routes();
  run(request(prompts()[0], "tree", 20));
  const WatchedDrafts watched = engine_->watch_drafts();
  EXPECT_EQ(watched.followed.number, 0u);
  EXPECT_TRUE(watched.steps.empty());
}

TEST_F(WatchDrafts, several_look_and_pick_while_requests_come_and_go) {
  start_routes();
  std::atomic<bool> is_over{false};
  std::atomic<int> n_seen{0};
  std::vector<std::thread> viewers;
  for (int viewer = 0; viewer < 3; ++viewer) {
    viewers.emplace_back([&] {
      while (!is_over) {
        const WatchedDrafts watched = engine_->watch_drafts();
        for (const auto& step : watched.steps) {
          Ints text;
          check_step(*step, text);
          ++n_seen;
        }
        if (!watched.running.empty()) engine_->follow_drafts(watched.running.front().number);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  std::vector<Request> requests;
  for (const char* name : {"lookup", "tree", "off", "suffix"}) {
    for (size_t i = 0; i < 4; ++i) requests.push_back(request(prompts()[i], name, 24));
  }
  const std::vector<Outcome> outcomes = run_all(requests);
  is_over = true;
  for (std::thread& viewer : viewers) viewer.join();
  for (const Outcome& each : outcomes) EXPECT_EQ(each.tokens.size(), 24u);
  EXPECT_GT(n_seen, 0);
}

}  // namespace
}  // namespace specd
