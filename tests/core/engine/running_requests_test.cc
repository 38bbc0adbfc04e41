// Changes of routes that reach requests which run, changes that are only tried, and what is told of them.
// Texts are compared with plain decoding, calls of plugins with what one wrote down.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/core/engine/route_rig.h"

namespace specd {
namespace {

constexpr int32_t kLongTokens = 300;

class RunningRequestsTest : public RouteRig {
 protected:
  // So many requests of the route, which run slowly until expect_plain(); the texts that they must get.
  void submit_all(size_t n, float temperature = 0) {
    std::vector<Request> all;
    for (size_t i = 0; i < n; ++i)
      all.push_back(request(prompts()[i % prompts().size()], "off", kLongTokens, temperature, i));
    plain_ = run_all(all);
    for (Request& each : all) {
      each.route = "r";
      pending_.push_back(submit_slow(each));
    }
  }
  void expect_plain() {
    for (Pending& each : pending_) each.slow(false);
    std::vector<Outcome> outcomes;
    for (Pending& each : pending_) outcomes.push_back(each.wait());
    pending_.clear();
    expect_identical(outcomes, plain_, "changed while it ran");
  }
  RouteChange done(const Result<RouteChange>& change) {
    EXPECT_TRUE(change.ok()) << change.status().to_string();
    return change.ok() ? change.value() : RouteChange();
  }
  static std::string counts(const RouteChange& change) {
    return std::to_string(change.n_attached) + " attached, " + std::to_string(change.n_dropped) +
           " dropped, " + std::to_string(change.n_kept) + " kept";
  }
  std::vector<Outcome> plain_;
  std::vector<Pending> pending_;
};

TEST_F(RunningRequestsTest, attach_to_the_version_that_is_applied_and_no_token_changes) {
  for (const float temperature : {0.0f, 0.8f}) {
    start_with({lookup("r", 4)});
    submit_all(6, temperature);
    for (Pending& each : pending_) each.wait_for_tokens(1);
    const RouteChange change =
        done(engine_->apply_route(suffix("r"), {.running = RunningRequests::kAttach}));
    EXPECT_EQ(counts(change), "6 attached, 0 dropped, 0 kept");
    expect_versions("live 2");
    expect_plain();
    EXPECT_GT(report("r").counts.drafted, 0u) << "those that were attached drafted";
    EXPECT_EQ(report("r").counts.requests, 0u) << "none was admitted with it";
  }
}

TEST_F(RunningRequestsTest, also_those_that_wait_get_the_new_version) {
  EngineOptions o = options();
  o.max_sequences = 2;
  start_with({lookup("r", 4)}, o);
  submit_all(6);
  for (size_t i = 0; i < 2; ++i) pending_[i].wait_for_tokens(1);
  stage(suffix("r"));
  const RouteChange tried =
      done(engine_->promote_route("r", {.running = RunningRequests::kAttach, .dry_run = true}));
  EXPECT_EQ(counts(tried), "6 attached, 0 dropped, 0 kept");
  expect_versions("live 1, staged 2");
  const RouteChange promoted =
      done(engine_->promote_route("r", {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(promoted), "6 attached, 0 dropped, 0 kept");
  // And back.
  const RouteChange back =
      done(engine_->roll_back_route("r", {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(back), "6 attached, 0 dropped, 0 kept");
  expect_versions("live 1");
  expect_plain();
}

TEST_F(RunningRequestsTest, keep_their_version_where_the_new_drafter_cannot_begin_in_their_middle) {
  const std::string log = folder_ + "/life";
  start_with({lookup("r", 4)});
  submit_all(4);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  // It begins with a prompt only.
  const RouteChange kept =
      done(engine_->apply_route(with_log("r", log), {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(kept), "0 attached, 0 dropped, 4 kept");
  expect_versions("live 2, draining 1");
  expect_plain();
  expect_versions("live 2");
  submit_all(2);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  const RouteChange attached =
      done(engine_->apply_route(lookup("r", 3), {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(attached), "2 attached, 0 dropped, 0 kept");
  expect_versions("live 3");
  EXPECT_EQ(count_lines(log, "deactivate"), 1) << "nobody has it any more";
  expect_plain();
}

TEST_F(RunningRequestsTest, keep_a_version_that_promises_more) {
  RouteOptions law = suffix("r");
  law.guarantee = Guarantee::kLaw;
  start_with({lookup("r", 4)});
  submit_all(2);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  const RouteChange kept = done(engine_->apply_route(law, {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(kept), "0 attached, 0 dropped, 2 kept");
  const RouteChange back =
      done(engine_->apply_route(suffix("r"), {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(back), "2 attached, 0 dropped, 0 kept");
  expect_plain();
}

TEST_F(RunningRequestsTest, go_on_without_drafts_when_they_are_dropped) {
  const std::string log = folder_ + "/life";
  start_with({with_log("r", log)});
  submit_all(4);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  const RouteChange dropped = done(engine_->delete_route("r", {.running = RunningRequests::kDrop}));
  EXPECT_EQ(counts(dropped), "0 attached, 4 dropped, 0 kept");
  expect_versions("");
  EXPECT_EQ(count_lines(log, "deactivate"), 1);
  EXPECT_EQ(engine_->status().running, 4) << "while they run";
  expect_plain();
}

TEST_F(RunningRequestsTest, of_a_candidate_go_to_the_live_version_when_it_is_aborted) {
  start_with({lookup("r", 4)});
  stage(suffix("r"));
  share(100);
  submit_all(3);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  const RouteChange aborted =
      done(engine_->abort_route("r", {.running = RunningRequests::kAttach}));
  EXPECT_EQ(counts(aborted), "3 attached, 0 dropped, 0 kept");
  expect_versions("live 1");
  expect_plain();
}

TEST_F(RunningRequestsTest, are_moved_to_and_fro_and_no_token_changes) {
  EngineOptions o = options();
  o.max_sequences = 6;
  start_with({lookup("r", 4)}, o);
  submit_all(8);
  int n_attached = 0;
  for (int i = 0; i < 12; ++i) {
    const RunningRequests running = i % 5 == 3 ? RunningRequests::kKeep : RunningRequests::kAttach;
    const RouteOptions next = i % 2 == 0 ? suffix("r") : lookup("r", 2 + i % 6);
    n_attached += done(engine_->apply_route(next, {.running = running})).n_attached;
    for (Pending& each : pending_) each.slow(i < 3);
  }
  EXPECT_GE(n_attached, 16);
  expect_plain();
}

TEST_F(RunningRequestsTest,
       that_a_change_has_left_behind_get_the_live_version_when_it_is_applied_again) {
  start_with({lookup("r", 4)});
  submit_all(2);
  for (Pending& each : pending_) each.wait_for_tokens(1);
  ASSERT_TRUE(engine_->apply_route(suffix("r")).ok());
  expect_versions("live 2, draining 1");
  const RouteChange again =
      done(engine_->apply_route(suffix("r"), {.running = RunningRequests::kAttach}));
  EXPECT_TRUE(again.unchanged);
  EXPECT_EQ(counts(again), "2 attached, 0 dropped, 0 kept");
  expect_versions("live 2");
  EXPECT_EQ(engine_->status().running, 2);
  expect_plain();
}

TEST_F(RunningRequestsTest, a_change_that_is_only_tried_changes_nothing) {
  const std::string log = folder_ + "/life";
  start_with({lookup("r", 4)});
  const size_t n_events = engine_->events(0, 1000).size();
  const auto tried = [&](Result<RouteChange> change) { return done(change).generation; };
  const ChangeOptions dry{.dry_run = true};
  EXPECT_EQ(tried(engine_->apply_route(with_log("r", log), dry)), 2u);
  EXPECT_EQ(tried(engine_->stage_route(lookup("r", 3), dry)), 2u);
  EXPECT_EQ(tried(engine_->delete_route("r", dry)), 2u);
  EXPECT_NE(refusal(engine_->stage_route(broken("r", "no such mode"), dry)).find("routes.r"),
            std::string::npos)
      << "every check is made";
  expect_versions("live 1");
  for (int i = 0; i < 6000 && count_lines(log, "deactivate") == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(count_lines(log, "activate"), 1) << "the pair was made";
  EXPECT_EQ(count_lines(log, "deactivate"), 1) << "and ended";
  EXPECT_EQ(stage(lookup("r", 3)), 2u);
  EXPECT_GT(done(engine_->promote_route("r", dry)).memory_bytes_max, 0u);
  EXPECT_EQ(tried(engine_->set_traffic("r", {10}, dry)), 2u);
  EXPECT_EQ(tried(engine_->abort_route("r", dry)), 2u);
  expect_versions("live 1, staged 2");
  promote();
  EXPECT_EQ(tried(engine_->roll_back_route("r", dry)), 1u);
  expect_versions("live 2, draining 1");
  EXPECT_EQ(engine_->events(0, 1000).size(), n_events + 2) << "staged and promoted";
}

TEST_F(RunningRequestsTest, a_change_may_name_the_version_that_it_means) {
  start_with({lookup("r", 4)});
  const auto expect = [&](const Result<RouteChange>& change, const std::string& words) {
    EXPECT_NE(refusal(change).find(words), std::string::npos) << refusal(change);
  };
  stage(lookup("r", 2));
  const std::string other = "generation: the candidate version is 2, expected was 3";
  expect(engine_->promote_route("r", {.generation = 3}), other);
  expect(engine_->set_traffic("r", {10}, {.generation = 3}), other);
  expect(engine_->abort_route("r", {.generation = 3}), other);
  EXPECT_TRUE(engine_->set_traffic("r", {10}, {.generation = 2}).ok());
  EXPECT_TRUE(engine_->promote_route("r", {.generation = 2}).ok());
  expect(engine_->roll_back_route("r", {.generation = 1}),
         "generation: the live version is 2, expected was 1");
  EXPECT_TRUE(engine_->roll_back_route("r", {.generation = 2}).ok());
  expect(engine_->apply_route(lookup("r", 3), {.generation = 1}), "generation: expected 0");
  expect(engine_->stage_route(lookup("r", 3), {.generation = 1}), "generation: expected 0");
  expect(engine_->delete_route("r", {.generation = 1}), "generation: expected 0");
  const ChangeOptions attach{.running = RunningRequests::kAttach};
  expect(engine_->stage_route(lookup("r", 3), attach), "running: expected keep");
  expect(engine_->set_traffic("r", {3}, attach), "running: expected keep");
  expect(engine_->delete_route("r", attach), "running: expected keep or drop");
  expect_versions("live 1");
}

TEST_F(RunningRequestsTest, events_say_what_happened_to_a_route_and_why) {
  start_with({lookup("r", 4)});
  stage(broken("r", "update_fails"));
  share(5);
  EXPECT_TRUE(engine_->promote_route("r", {.request_id = "by-hand"}).ok());
  run_until("live 1", 20);
  ASSERT_TRUE(engine_->delete_route("r").ok());
  std::vector<EventKind> kinds;
  uint64_t last = 0;
  for (const EngineEvent& each : engine_->events(0, 1000)) {
    kinds.push_back(each.kind);
    EXPECT_EQ(each.number, last + 1);
    last = each.number;
    EXPECT_EQ(each.route, "r");
    EXPECT_GT(each.unix_ns, 1'700'000'000'000'000'000);
    EXPECT_EQ(each.request_id, each.kind == EventKind::kPromoted ? "by-hand" : "");
    if (each.kind == EventKind::kSuspended) {
      EXPECT_EQ(each.generation, 2u);
    }
    if (each.kind == EventKind::kRolledBack) {
      EXPECT_EQ(each.generation, 1u);
      EXPECT_NE(each.text.find("instead of 2, because its drafter was suspended: "),
                std::string::npos)
          << each.text;
    }
  }
  EXPECT_EQ(kinds,
            (std::vector<EventKind>{EventKind::kStaged, EventKind::kTraffic, EventKind::kPromoted,
                                    EventKind::kDefect, EventKind::kSuspended,
                                    EventKind::kRolledBack, EventKind::kDeleted}));
  EXPECT_EQ(engine_->events(last, 1000).size(), 0u);
  EXPECT_EQ(engine_->events(2, 1).at(0).number, 3u);
  EXPECT_EQ(engine_->wait_event(0, 60'000), last) << "it is there";
  EXPECT_EQ(engine_->wait_event(last, 1), last) << "the timeout";
  std::thread later([&] { (void)engine_->apply_route(lookup("r", 2)); });
  EXPECT_EQ(engine_->wait_event(last, 60'000), last + 1);
  later.join();
  for (int i = 0; i < 520; ++i) {
    (void)engine_->delete_route("r");
    ASSERT_TRUE(engine_->apply_route(lookup("r", 2)).ok());
  }
  const std::vector<EngineEvent> held = engine_->events(0, 10'000);
  EXPECT_EQ(held.size(), 1024u) << "the oldest ones went";
  EXPECT_EQ(held.back().number, last + 1 + 1040);
}

}  // namespace
}  // namespace specd
