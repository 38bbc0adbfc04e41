// Routes that are suspended while their drafts cost more time than they save.
#include <gtest/gtest.h>

#include "core/spec/benefit.h"
#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

class SlowDrafts : public BesideRig {
 protected:
  // Drafts that are always wrong: each step computes nine rows for one token.
  static RouteOptions wrong(const std::string& name) {
    RouteOptions wanted = broken(name, "wrong");
    wanted.draft_nodes_max = 8;
    wanted.suspend_when_slower = true;
    return wanted;
  }
  // Drafts that are always right.
  RouteOptions right(const std::string& name, const Request& of, const Outcome& plain) {
    const std::string file = record({of}, {plain});
    RouteOptions wanted =
        route(name, plugin("specd.drafter.replay", {{"file", file}, {"draft_tokens", 4}}), 4);
    wanted.suspend_when_slower = true;
    return wanted;
  }
  uint64_t suspensions(const std::string& name, SuspensionRule rule) {
    return report(name).counts.suspensions[static_cast<size_t>(rule)];
  }
};

TEST_F(SlowDrafts, are_suspended_and_those_that_pay_are_not) {
  start(options());
  const Request r = request(prompts()[3], "off", 500);
  const Outcome plain = run(r);
  start_with({wrong("wrong"), right("right", r, plain)});
  Request with = r;
  with.route = "wrong";
  EXPECT_EQ(run(with).tokens, plain.tokens);
  EXPECT_EQ(suspensions("wrong", SuspensionRule::kBenefit), 1u);
  EXPECT_TRUE(has_event(EventKind::kSuspended, "by the rule benefit: its drafts do not pay: "));
  EXPECT_EQ(report("wrong").counts.drafts, 3 * Benefit::kDraftSteps) << "and no more until its end";
  with.route = "right";
  EXPECT_EQ(run(with).tokens, plain.tokens);
  const RouteReport paying = report("right");
  EXPECT_GT(paying.counts.steps, 80u) << "enough for a probe";
  EXPECT_LT(paying.counts.drafts, paying.counts.steps - 15) << "steps of the probe have none";
  EXPECT_EQ(suspensions("right", SuspensionRule::kBenefit), 0u);
}

TEST_F(SlowDrafts, are_tried_again_with_new_requests) {
  start_with({wrong("r")});
  constexpr int32_t kTokens = 1500;
  const Request r = request(prompts()[3], "r", kTokens);
  const Outcome plain = run(request(prompts()[3], "off", kTokens));
  Pending old = submit(r);
  wait_for([&] { return suspensions("r", SuspensionRule::kBenefit) > 0; });
  old.slow(true);
  wait_for([&] { return !report("r").suspended; });
  const uint64_t drafted = report("r").counts.drafted;
  old.slow(false);
  EXPECT_EQ(old.wait().tokens, plain.tokens);
  EXPECT_EQ(report("r").counts.drafted, drafted) << "it goes on without";
  EXPECT_EQ(run(r).tokens, plain.tokens);
  EXPECT_GT(report("r").counts.drafted, drafted);
  EXPECT_EQ(suspensions("r", SuspensionRule::kBenefit), 2u) << "the first comparison decides";
  EXPECT_TRUE(has_event(EventKind::kSuspended, "tried again in 2 s, by the rule benefit"));
}

TEST_F(SlowDrafts, on_probation_give_the_route_back) {
  start_with({lookup("r", 4)});
  stage(wrong("r"));
  promote();
  expect_versions("live 2, draining 1");
  const Request r = request(prompts()[3], "r", 500);
  const Outcome plain = run(request(prompts()[3], "off", 500));
  EXPECT_EQ(run(r).tokens, plain.tokens);
  expect_versions("live 1");
  EXPECT_TRUE(has_event(EventKind::kRolledBack, "its drafts do not pay"));
}

TEST_F(SlowDrafts, stay_where_nobody_asked_to_compare) {
  RouteOptions wanted = wrong("r");
  wanted.suspend_when_slower = false;
  start_with({wanted});
  const Outcome outcome = run(request(prompts()[3], "r", 500));
  EXPECT_EQ(outcome.usage.steps, 500);
  EXPECT_EQ(report("r").counts.drafts, 498u) << "every step but the first and the last one";
  EXPECT_FALSE(report("r").suspended);
}

}  // namespace
}  // namespace specd
