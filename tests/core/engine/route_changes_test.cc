// A route's versions side by side: candidate, share, promotion, probation and the way back. Texts are
// compared with plain decoding, shares with a binomial distribution, the life of instances with what a
// plugin wrote down about itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/engine/route_rig.h"

namespace specd {
namespace {

class RouteChanges : public RouteRig {};

TEST_F(RouteChanges, a_candidate_gets_its_share_and_no_token_changes) {
  constexpr int kRequests = 400;
  start_with({lookup("r", 4)});
  const Outcome plain = run(request(prompts()[2], "off", 4));
  EXPECT_EQ(stage(lookup("r", 2)), 2u);
  expect_versions("live 1, staged 2");
  const auto run_many = [&](int n) {
    for (; n > 0; n -= 100) {  // the queue is not longer
      const std::vector<Request> some(static_cast<size_t>(std::min(n, 100)),
                                      request(prompts()[2], "r", 4));
      for (const Outcome& each : run_all(some)) EXPECT_EQ(each.tokens, plain.tokens);
    }
  };
  run_many(10);
  EXPECT_EQ(requests_of(2), 0u) << "staged";
  EXPECT_EQ(share(25), 2u);
  expect_versions("live 1, canary 2 at 25 %");
  run_many(kRequests);
  const double expected = 0.25 * kRequests, sigma = std::sqrt(expected * 0.75);
  EXPECT_NEAR(static_cast<double>(requests_of(2)), expected, 5 * sigma);
  EXPECT_EQ(requests_of(1) + requests_of(2), 10u + kRequests);
  const uint64_t before = requests_of(2);
  EXPECT_EQ(share(100), 2u);
  run_many(10);
  EXPECT_EQ(requests_of(2), before + 10);
  EXPECT_EQ(share(0), 2u);
  expect_versions("live 1, staged 2");
  run_many(10);
  EXPECT_EQ(requests_of(2), before + 10);
  EXPECT_EQ(abort(), 2u);
  expect_versions("live 1");
}

TEST_F(RouteChanges, a_promotion_can_be_taken_back_without_making_the_pair_again) {
  const std::string log = folder_ + "/life";
  start_with({});
  ASSERT_TRUE(engine_->apply_route(with_log("r", log)).ok());
  stage(lookup("r", 3));
  EXPECT_EQ(promote(), 3u);
  expect_versions("live 3, draining 2");
  EXPECT_EQ(roll_back(), 2u);
  expect_versions("live 2");
  EXPECT_EQ(count_lines(log, "activate"), 1);
  EXPECT_EQ(count_lines(log, "deactivate"), 0);
  const Outcome plain = run(request(prompts()[1], "off", 16));
  EXPECT_EQ(run(request(prompts()[1], "r", 16)).tokens, plain.tokens);
  EXPECT_NE(refusal(engine_->roll_back_route("r")).find("keeps no previous version"),
            std::string::npos);
  // A second promotion lets go of what the first one kept.
  stage(lookup("r", 2));
  promote();
  stage(lookup("r", 5));
  promote();
  expect_versions("live 5, draining 4");
  EXPECT_EQ(count_lines(log, "deactivate"), 1);
}

TEST_F(RouteChanges, requests_keep_the_version_that_they_were_admitted_with) {
  start_with({lookup("r", 4)});
  Request r = request(prompts()[0], "off", 200);
  const Outcome plain = run(r);
  r.route = "r";
  stage(lookup("r", 2));
  share(100);
  Pending canary;
  canary.hold_at(1);
  ASSERT_TRUE(engine_->submit(r, canary.sink()).ok());
  canary.wait_for_tokens(1);
  abort();
  expect_versions("live 1, draining 2");
  canary.let_go();
  stage(lookup("r", 3));
  promote();
  Pending promoted = submit(r);
  promoted.wait_for_tokens(1);
  roll_back();
  EXPECT_EQ(canary.wait().tokens, plain.tokens);
  EXPECT_EQ(promoted.wait().tokens, plain.tokens);
  expect_versions("live 1");
}

TEST_F(RouteChanges, a_version_that_passes_its_probation_has_no_way_back) {
  start_with({lookup("r", 4)});
  stage(lookup("r", 2, 1));
  promote();
  expect_versions("live 2");
  EXPECT_NE(refusal(engine_->roll_back_route("r")).find("probation_seconds"), std::string::npos);
  stage(lookup("r", 3, 0));
  promote();
  EXPECT_FALSE(engine_->roll_back_route("r").ok()) << "no probation, no way back";
}

TEST_F(RouteChanges, a_breaker_that_opens_on_probation_flips_back) {
  start_with({lookup("r", 4)});
  stage(broken("r", "update_fails"));
  promote();
  expect_versions("live 2, draining 1");
  run_until("live 1", 20);
}

TEST_F(RouteChanges, a_candidate_whose_breaker_opens_is_aborted) {
  start_with({lookup("r", 4)});
  stage(broken("r", "status_error"));
  share(50);
  run_until("live 1", 40);
}

TEST_F(RouteChanges, a_candidate_that_lost_its_share_is_aborted_all_the_same) {
  start_with({lookup("r", 4)});
  stage(broken("r", "status_error"));
  share(100);
  Request r = request(prompts()[0], "r", 100);
  Pending held;
  held.hold_at(1);
  ASSERT_TRUE(engine_->submit(r, held.sink()).ok());
  held.wait_for_tokens(1);
  share(0);
  expect_versions("live 1, staged 2");
  held.let_go();
  (void)held.wait();
  expect_versions("live 1");
}

TEST_F(RouteChanges, a_candidate_beside_a_probation_hinders_neither_end) {
  start_with({lookup("r", 4)});
  stage(broken("r", "update_fails"));
  promote();
  stage(lookup("r", 3));
  expect_versions("live 2, staged 3, draining 1");
  run_until("live 1, staged 3", 20);
  promote();
  expect_versions("live 3, draining 1");
  // Whatever the route keeps goes with it, or with one that replaces it at once.
  stage(lookup("r", 2));
  ASSERT_TRUE(engine_->delete_route("r").ok());
  expect_versions("");
  ASSERT_TRUE(engine_->apply_route(lookup("r", 4)).ok());
  stage(lookup("r", 5));
  promote();
  ASSERT_TRUE(engine_->apply_route(lookup("r", 6)).ok());
  expect_versions("live 8");
  // The engine ends with all three.
  stage(lookup("r", 3));
  promote();
  stage(lookup("r", 2));
  share(50);
  expect_versions("live 9, canary 10 at 50 %, draining 8");
}

TEST_F(RouteChanges, counts_of_the_live_version_only_grow_while_its_plugins_are_the_same) {
  start_with({lookup("r", 4)});
  const auto run_one = [&] { run(request(prompts()[0], "r", 4)); };
  const auto n_requests = [&] { return report("r").counts.requests; };
  run_one();
  ASSERT_TRUE(engine_->apply_route(lookup("r", 3)).ok());
  run_one();
  EXPECT_EQ(n_requests(), 2u);
  expect_versions("live 2");
  stage(suffix("r"));
  promote();
  EXPECT_EQ(n_requests(), 0u) << "other plugins";
  run_one();
  EXPECT_EQ(n_requests(), 1u);
  roll_back();
  EXPECT_EQ(n_requests(), 2u) << "of generations 1 and 2";
  expect_versions("live 2");
  stage(lookup("r", 2));
  share(100);
  run_one();
  EXPECT_EQ(n_requests(), 2u);
  promote();
  EXPECT_EQ(n_requests(), 3u);
  expect_versions("live 4, draining 2");
}

TEST_F(RouteChanges, the_default_route_can_be_replaced_in_steps) {
  EngineOptions o = options();
  o.routes = {lookup("r", 4)};
  o.default_route = "r";
  start(o);
  stage(lookup("r", 2));
  share(100);
  const Outcome plain = run(request(prompts()[1], "off", 16));
  EXPECT_EQ(run(request(prompts()[1], "", 16)).tokens, plain.tokens);
  EXPECT_EQ(requests_of(2), 1u);
  promote();
  EXPECT_TRUE(report("r").is_default);
  EXPECT_EQ(report("r").generation, 2u);
  roll_back();
  EXPECT_TRUE(report("r").is_default);
  EXPECT_EQ(report("r").generation, 1u);
}

TEST_F(RouteChanges, memory_has_a_line_for_each_version) {
  start_with({lookup("r", 4)});
  stage(lookup("r", 2));
  share(10);
  std::string lines;
  for (const MemoryLine& line : engine_->memory()) {
    if (line.what.starts_with("drafter of route r")) lines += line.what + "; ";
  }
  EXPECT_EQ(lines, "drafter of route r (limit); drafter of route r (limit, canary); ");
}

TEST_F(RouteChanges, a_new_route_serves_once_it_is_promoted) {
  start_with({});
  EXPECT_EQ(stage(lookup("r", 4)), 2u);
  expect_versions("staged 2");
  const auto sunk = engine_->submit(request(prompts()[0], "r", 4), [](const Event&) {});
  ASSERT_FALSE(sunk.ok());
  EXPECT_NE(sunk.status().text().find("its first version is not promoted yet"), std::string::npos);
  EXPECT_NE(refusal(engine_->set_traffic("r", {10})).find("no live version"), std::string::npos);
  promote();
  expect_versions("live 2");
  EXPECT_FALSE(engine_->roll_back_route("r").ok());
  // Aborted before it ever served, it is gone.
  ASSERT_TRUE(engine_->delete_route("r").ok());
  stage(lookup("r", 4));
  abort();
  expect_versions("");
  EXPECT_EQ(engine_->route("r").status().code(), Code::kNotFound);
}

TEST_F(RouteChanges, what_cannot_be_done_is_refused_and_changes_nothing) {
  start_with({lookup("r", 4)});
  const auto expect = [&](const Result<RouteChange>& change, const std::string& words) {
    EXPECT_NE(refusal(change).find(words), std::string::npos) << refusal(change);
  };
  for (const auto& [name, words] : {std::pair("absent", "NOT_FOUND: no route is called 'absent'"),
                                    std::pair("off", "FAILED_PRECONDITION: 'off' is plain")}) {
    expect(engine_->promote_route(name), words);
    expect(engine_->abort_route(name), words);
    expect(engine_->roll_back_route(name), words);
    expect(engine_->set_traffic(name, {5}), words);
  }
  expect(engine_->promote_route("a b"), "name: expected printable ASCII");
  expect(engine_->promote_route("r"), "FAILED_PRECONDITION: the route has no candidate");
  expect(engine_->abort_route("r"), "FAILED_PRECONDITION: the route has no candidate");
  expect(engine_->set_traffic("r", {5}), "FAILED_PRECONDITION: the route has no candidate");
  expect(engine_->roll_back_route("r"), "FAILED_PRECONDITION: the route keeps no previous");
  expect(engine_->set_traffic("r", {101}), "share_percent: expected 0 to 100, found 101");
  expect(engine_->set_traffic("r", {-1}), "share_percent: expected 0 to 100, found -1");
  RouteOptions bad = lookup("r", 4);
  bad.probation_seconds = -1;
  expect(engine_->stage_route(bad), "routes.r.probation_seconds: expected 0 to 86400");
  // The live definition again stages nothing.
  const auto same = engine_->stage_route(lookup("r", 4));
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same.value().unchanged);
  expect_versions("live 1");

  EXPECT_EQ(stage(lookup("r", 2)), 2u);
  expect(engine_->stage_route(lookup("r", 3)), "routes.r: the route has a candidate, generation 2");
  expect(engine_->apply_route(lookup("r", 3)), "routes.r: the route has a candidate, generation 2");
  // What is so already stays so.
  for (const auto& again :
       {engine_->stage_route(lookup("r", 2)), engine_->apply_route(lookup("r", 4))}) {
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_TRUE(again.value().unchanged);
  }
  expect(engine_->stage_route(broken("s", "no such mode")), "routes.s");
  expect_versions("live 1, staged 2");
  expect_versions("", "s");

  // A request id that comes again gets the first reply; with another command it is refused.
  const auto first = engine_->set_traffic("r", {10}, {.request_id = "id"});
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first.value().unchanged);
  share(20);
  EXPECT_TRUE(engine_->set_traffic("r", {10}, {.request_id = "id"}).ok());
  expect_versions("live 1, canary 2 at 20 %");
  expect(engine_->set_traffic("r", {11}, {.request_id = "id"}),
         "request_id: 'id' was used for another change");
  expect(engine_->promote_route("r", {.request_id = "id"}),
         "request_id: 'id' was used for another change");
  engine_->start_drain();
  expect(engine_->promote_route("r"), "UNAVAILABLE");
}

TEST_F(RouteChanges, a_storm_of_them_changes_no_token) {
  start_with({lookup("r", 4)});
  int failed_to_stage = 0;
  under_load([&] {
    for (int i = 0; i < 30; ++i) {
      if (i % 7 == 6) {
        failed_to_stage += engine_->stage_route(broken("r", "no such mode")).ok() ? 0 : 1;
      }
      stage(lookup("r", 2 + i % 4 + (i % 2) * 4));
      share(10 + i);
      if (i % 5 == 4) {
        abort();
        continue;
      }
      promote();
      if (i % 3 == 2) roll_back();
    }
  });
  EXPECT_EQ(failed_to_stage, 4);
}

}  // namespace
}  // namespace specd
