// Drafters beside the step: guarded ones, for whom it waits a limited time, and shadows, for whom nobody
// waits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/base/sanitizer.h"
#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

class Beside : public BesideRig {};

TEST_F(Beside, guarded_drafters_change_no_text_and_draft_what_they_draft_in_the_step) {
  const auto zoo_head = [](const std::string& name, const std::string& kind) {
    return route(name,
                 plugin("specd.drafter." + kind,
                        {{"weights", std::string(SPECD_TEST_ZOO) + "/pico-" + kind}}),
                 20);
  };
  const std::vector<RouteOptions> in_step = {
      lookup("lookup", 4), suffix("suffix"),
      route("lookahead", plugin("specd.drafter.lookahead"), 40), zoo_head("medusa", "medusa"),
      zoo_head("redrafter", "redrafter")};
  start_both(in_step, [](RouteOptions each) { return guarded(std::move(each)); });
  expect_the_same_beside(in_step);
  audit();
}

TEST_F(Beside, a_guarded_drafter_that_breaks_the_rules_costs_drafts_only) {
  const char* modes[] = {"token_vocab", "count_huge",   "status_error", "status_one",
                         "begin_fails", "update_fails", "garbage"};
  std::vector<RouteOptions> routes;
  for (const char* mode : modes) routes.push_back(guarded(broken(mode, mode)));
  start_with(routes);
  const std::vector<Outcome> plain = run_all(all_requests("off", 24));
  for (const char* mode : modes) {
    expect_identical(run_all(all_requests(mode, 24)), plain, mode);
    const RouteReport seen = report(mode);
    EXPECT_GT(seen.counts.cut + seen.counts.lost, 0u) << mode;
    EXPECT_NE(seen.last_problem, "") << mode;
  }
  EXPECT_NE(report("update_fails").last_problem.find("SPECD_E_INTERNAL"), std::string::npos)
      << report("update_fails").last_problem;
  audit();
}

TEST_F(Beside, a_guarded_drafter_that_hangs_costs_one_wait_and_is_quarantined) {
  constexpr int32_t kBudgetMs = 40;
  start_with({guarded(hanging("r"), kBudgetMs * 1000)});
  const Request r = request(prompts()[3], "r", 200);
  Request off = r;
  off.route = "off";
  const Outcome plain = run(off);
  EXPECT_EQ(run(r).tokens, plain.tokens);
  Pending slow = submit(r);
  slow.wait_for_tokens(2);
  hang();
  slow.wait_for_tokens(10);
  // The longest time without a token: the wait, and a step.
  auto last = std::chrono::steady_clock::now();
  std::chrono::nanoseconds longest{0};
  for (size_t n = 11; n <= 200; ++n) {
    slow.wait_for_tokens(n);
    const auto now = std::chrono::steady_clock::now();
    longest = std::max<std::chrono::nanoseconds>(longest, now - last);
    last = now;
  }
  EXPECT_EQ(slow.wait().tokens, plain.tokens);
  EXPECT_LT(longest.count(), 1'000'000'000) << "it waits for the budget and not for the drafter";
  // Steps notice it, so there must be some.
  wait_for([&] { return run(r).tokens == plain.tokens && versions() == "quarantined 1"; });
  const RouteReport seen = version(RouteState::kQuarantined);
  EXPECT_NE(seen.last_problem.find("has not returned within call_ms_max, 200 ms"),
            std::string::npos)
      << seen.last_problem;
  EXPECT_TRUE(seen.suspended);
  EXPECT_TRUE(has_event(EventKind::kQuarantined, "route r: generation 1 is quarantined"));
  EXPECT_TRUE(has_event(EventKind::kSetAside, "specd.test.drafter_bad"));
  EXPECT_EQ(run(r).tokens, plain.tokens) << "requests that name it are decoded plainly";
  EXPECT_NE(refusal(engine_->apply_route(broken("x", "wrong"))).find("not loaded again"),
            std::string::npos)
      << "its plugin is set aside";
  // The way out: another drafter.
  good(engine_->apply_route(lookup("r", 4)));
  EXPECT_EQ(run(r).tokens, plain.tokens);
  go_on();
  expect_versions("live 2");
}

// Longest of all turns of the threads with this name.
ThreadReport busiest(const std::string& thread) {
  ThreadReport busiest;
  for (const ThreadReport& each : thread_reports()) {
    if (each.thread == thread && each.busy_ns >= busiest.busy_ns) busiest = each;
  }
  return busiest;
}

TEST_F(Beside, a_thread_that_hangs_in_a_call_is_shown_with_its_plugin_and_does_not_count_as_stuck) {
  for (const char* thread : {"specd-drafter", "specd-shadow"}) {
    const bool is_shadow = std::string(thread) == "specd-shadow";
    start_with({is_shadow ? lookup("r", 4) : guarded(hanging("r"), 1000)});
    if (is_shadow) {
      stage(hanging("r"));
      shadow();
    }
    const Request r = request(prompts()[3], "r", 20);
    run(r);
    wait_for([&] { return busiest(thread).busy_ns == 0; });
    hang();
    // A drafter that was late before is suspended for a second, so one request need not reach it.
    wait_for([&] {
      run(r);
      return busiest(thread).busy_ns > 300'000'000;
    });
    EXPECT_EQ(busiest(thread).work, "specd.test.drafter_bad (r.drafter)");
    EXPECT_FALSE(busiest(thread).is_stuck());
    bool is_in_metrics = false;
    for (const MetricFamily& family : engine_->metrics()) {
      if (family.name != "specd_thread_busy_seconds") continue;
      for (const MetricSeries& each : family.series)
        is_in_metrics = is_in_metrics || (each.labels[0].second == thread && each.value >= 0.3);
    }
    EXPECT_TRUE(is_in_metrics);
    go_on();
    wait_for([&] { return busiest(thread).busy_ns == 0; });
    audit();
  }
}

TEST_F(Beside, one_that_hangs_on_probation_flips_back) {
  start_with({lookup("r", 4)});
  const Request r = request(prompts()[3], "r", 60);
  const Outcome plain = run(request(prompts()[3], "off", 60));
  stage(guarded(hanging("r"), 1000));
  promote();
  expect_versions("live 2, draining 1");
  hang();
  wait_for([&] {
    return run(r).tokens == plain.tokens &&
           has_event(EventKind::kRolledBack, "because it is quarantined");
  });
  go_on();
  expect_versions("live 1");
}

TEST_F(Beside, a_slow_one_is_suspended_and_not_quarantined) {
  RouteOptions slow = guarded(broken("r", "slow"), 5000);
  start_with({slow});
  const Request r = request(prompts()[3], "r", 60);
  const Outcome plain = run(request(prompts()[3], "off", 60));
  wait_for([&] { return run(r).tokens == plain.tokens && report("r").suspended; });
  EXPECT_EQ(report("r").state, RouteState::kLive);
  EXPECT_NE(report("r").last_problem.find("5000 us (step_budget_us)"), std::string::npos);
  EXPECT_TRUE(has_event(EventKind::kSuspended, "step_budget_us"));
}

TEST_F(Beside, what_works_in_the_step_only_is_refused_with_the_reason) {
  EngineOptions o = options("pico-target");
  o.draft_models.push_back({.name = "draft", .path = std::string(SPECD_TEST_ZOO) + "/pico-draft"});
  const RouteOptions with_model =
      route("model", plugin("specd.drafter.draft_target", {{"model", "draft"}}), 4);
  const RouteOptions with_kv = route(
      "kv",
      plugin("specd.drafter.eagle3", {{"weights", std::string(SPECD_TEST_ZOO) + "/pico-eagle3"},
                                      {"mode", "chain"},
                                      {"draft_tokens", 5}}),
      5);
  const RouteOptions of_parts = route(
      "parts",
      plugin("specd.drafter.cascade",
             {{"drafters",
               {{{"plugin", "specd.drafter.prompt_lookup"}},
                {{"plugin", "specd.drafter.draft_target"}, {"config", {{"model", "draft"}}}}}}}),
      4);
  start_with({lookup("r", 4), with_model, with_kv, of_parts}, o);
  for (const auto& [wanted, service] :
       {std::pair(with_model, "model/1"), std::pair(with_kv, "kv/1"),
        std::pair(of_parts, "model/1")}) {
    ASSERT_EQ(report(wanted.name).state, RouteState::kLive) << report(wanted.name).refused.text();
    RouteOptions beside = guarded(wanted);
    beside.name = "x";
    const std::string why = refusal(engine_->apply_route(beside));
    EXPECT_NE(why.find("FAILED_PRECONDITION: routes.x.isolation: drafter specd.drafter."),
              std::string::npos)
        << why;
    EXPECT_NE(why.find(std::string("it uses the service ") + service), std::string::npos) << why;
    RouteOptions candidate = wanted;
    candidate.name = "r";
    candidate.verifier = lookup("r", 4).verifier;
    stage(candidate);
    const std::string no_shadow = refusal(engine_->set_traffic("r", {.is_shadow = true}));
    EXPECT_NE(no_shadow.find(
                  std::string("shadow: the candidate cannot be a shadow: it uses the service ") +
                  service),
              std::string::npos)
        << no_shadow;
    EXPECT_EQ(version(RouteState::kStaged).counts.requests, 0u);
    abort();
    expect_versions("live 1");
  }
}

TEST_F(Beside, a_shadow_accepts_what_the_same_drafter_accepts_when_it_is_live) {
  const auto medusa = [](int32_t nodes) {
    return route(
        "r",
        plugin("specd.drafter.medusa", {{"weights", std::string(SPECD_TEST_ZOO) + "/pico-medusa"}}),
        nodes);
  };
  // The same drafter behind other words, so that it is a new version.
  const auto again = [](RouteOptions wanted) {
    wanted.probation_seconds = 7;
    return wanted;
  };
  for (const RouteOptions& live : {lookup("r", 4), medusa(20)}) {
    start_with({live}, options("pico-target"));
    const std::vector<Outcome> plain = run_all(all_requests("off", 48));
    stage(again(live));
    shadow();
    const uint64_t before = report("r").counts.drafted;
    const uint64_t accepted_before = report("r").counts.accepted;
    expect_identical(run_all(all_requests("r", 48)), plain, "with a shadow");
    const RouteCounts its = version(RouteState::kLive).counts;
    // Until it has caught up. Proposals at the end of a text are not decided, so there are a few less.
    uint64_t counted = 0;
    wait_for([&] {
      const uint64_t last = std::exchange(counted, version(RouteState::kShadow).counts.drafted);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return counted > 0 && counted == last;
    });
    EXPECT_GT(static_cast<double>(counted), 0.9 * static_cast<double>(its.drafted - before));
    const RouteReport seen = version(RouteState::kShadow);
    const auto rate = [](uint64_t accepted, uint64_t drafted) {
      return static_cast<double>(accepted) / static_cast<double>(drafted);
    };
    EXPECT_NEAR(rate(seen.counts.accepted, seen.counts.drafted),
                rate(its.accepted - accepted_before, its.drafted - before), 0.01)
        << seen.counts.drafted << " of " << its.drafted;
    EXPECT_EQ(seen.counts.lost, 0u) << seen.last_problem;
    EXPECT_EQ(seen.counts.cut, 0u) << seen.last_problem;
    EXPECT_EQ(seen.counts.requests, 0u) << "no request is its own";
    EXPECT_GT(seen.counts.begin.calls, 0u);
    // It goes on as if it had never been one.
    share(100);
    expect_identical(run_all(all_requests("r", 48)), plain, "as a canary");
    shadow();
    promote();
    expect_identical(run_all(all_requests("r", 48)), plain, "live");
    audit();
  }
}

// drafter_taps writes for each sequence how many rows it saw, a hash of them with their hidden states, and how
// many probes were answered right and wrong.
TEST_F(Beside, they_see_every_row_and_state_that_a_drafter_in_the_step_sees) {
  const auto taps = [&](const std::string& name, const std::string& file) {
    return route(name, plugin("specd.test.drafter_taps", {{"file", folder_ + "/" + file}}), 4);
  };
  const auto lines = [&](const std::string& file) {
    std::ifstream in(folder_ + "/" + file);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    std::sort(all.begin(), all.end());
    return all;
  };
  for (const std::string device : {"cpu", "cuda:0"}) {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 0);
    EngineOptions o = options();
    o.devices = {device};
    for (const char* file : {"in_step", "guarded"}) std::filesystem::remove(folder_ + "/" + file);
    start_with({taps("in_step", "in_step"), guarded(taps("guarded", "guarded")), lookup("r", 4)},
               o);
    stage(taps("r", "shadow"));
    EXPECT_NE(refusal(engine_->set_traffic("r", {.is_shadow = true})).find("it proposes probes"),
              std::string::npos);
    for (const char* name : {"in_step", "guarded"}) {
      engine_->clear_prefix_cache();
      run_all(all_requests(name, 24));
      EXPECT_EQ(report(name).counts.lost, 0u) << name << ": " << report(name).last_problem;
    }
    wait_for([&] { return lines("guarded").size() == 16; });
    EXPECT_EQ(lines("guarded"), lines("in_step")) << device;
    audit();
  }
}

TEST_F(Beside, beside_a_device_they_work_in_host_memory) {
  setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 0);
  EngineOptions o = options("pico-target");
  o.devices = {"cuda:0"};
  RouteOptions medusa = guarded(route(
      "medusa",
      plugin("specd.drafter.medusa", {{"weights", std::string(SPECD_TEST_ZOO) + "/pico-medusa"}}),
      20));
  start_with({guarded(lookup("r", 4)), medusa}, o);
  const std::vector<Outcome> plain = run_all(all_requests("off", 24));
  expect_identical(run_all(all_requests("medusa", 24)), plain, "guarded, with hidden states");
  EXPECT_GT(report("medusa").counts.accepted, 0u);
  EXPECT_FALSE(report("medusa").drafts_on_device);
  stage(lookup("r", 6));
  shadow();
  expect_identical(run_all(all_requests("r", 24)), plain, "guarded, with a shadow");
  EXPECT_GT(report("r").counts.drafted, 0u);
  wait_for([&] { return version(RouteState::kShadow).counts.drafted > 0; });
  audit();
}

TEST_F(Beside, a_shadow_begins_in_the_middle_of_texts_and_leaves_them_again) {
  start_with({lookup("r", 2)});
  const Request r = request(prompts()[3], "r", 150);
  const Outcome plain = run(request(prompts()[3], "off", 150));
  Pending slow = submit_slow(r);
  slow.wait_for_tokens(5);
  stage(guarded(lookup("r", 8)));
  for (int i = 0; i < 3; ++i) {
    shadow();
    wait_for([&] { return version(RouteState::kShadow).counts.drafted > 0; });
    good(engine_->set_traffic("r", {0}));
    expect_versions("live 1, staged 2");
  }
  shadow();
  slow.slow(false);
  EXPECT_EQ(slow.wait().tokens, plain.tokens);
  abort();
  expect_versions("live 1");
}

TEST_F(Beside, a_shadow_that_hangs_is_given_up_and_nobody_notices) {
  start_with({lookup("r", 4)});
  const std::vector<Outcome> plain = run_all(all_requests("off", 40));
  stage(hanging("r"));
  shadow();
  hang();
  wait_for([&] {
    expect_identical(run_all(all_requests("r", 40)), plain, "beside a shadow that hangs");
    return has_event(EventKind::kAborted, "because it is quarantined");
  });
  EXPECT_TRUE(has_event(EventKind::kQuarantined, "generation 2 is quarantined"));
  go_on();
  expect_versions("live 1");
}

// Only with SPECD_NIGHTLY and on an idle machine, since it measures: tokens per second beside such a shadow, relative to a
// run just before without one, the median of 25.
TEST_F(Beside, a_shadow_that_is_slow_or_hangs_costs_others_little_time) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "SPECD_NIGHTLY is not set";
  EngineOptions o = options("pico-target");
  o.threads = 1;
  const std::vector<Request> requests = all_requests("r", 60);
  const auto seconds = [&] {
    engine_->clear_prefix_cache();
    const auto start = std::chrono::steady_clock::now();
    (void)run_all(requests);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  RouteOptions hangs = hanging("r");
  hangs.call_ms_max = 600'000;
  for (const RouteOptions& candidate : {broken("r", "slow"), hangs}) {
    start_with({lookup("r", 4)}, o);
    stage(candidate);
    (void)seconds();
    std::vector<double> ratios;
    for (int pair = 0; pair < 25; ++pair) {
      const double alone = seconds();
      shadow();
      hang();
      const double beside = seconds();
      go_on();
      share(0);
      ratios.push_back(alone / beside);
    }
    std::sort(ratios.begin(), ratios.end());
    std::printf("%s: tokens/s beside it %.3f of those without, quartiles %.3f and %.3f\n",
                candidate.drafter.config["mode"].get<std::string>().c_str(), ratios[12], ratios[6],
                ratios[18]);
    EXPECT_GE(ratios[12], SPECD_HAS_SANITIZER ? 0 : 0.97);
    EXPECT_FALSE(has_event(EventKind::kAborted, ""));
  }
}

TEST_F(Beside, a_shadow_that_fails_is_aborted) {
  start_with({lookup("r", 4)});
  const std::vector<Outcome> plain = run_all(all_requests("off", 40));
  stage(broken("r", "status_error"));
  shadow();
  expect_identical(run_all(all_requests("r", 40)), plain, "beside a shadow that fails");
  expect_versions("live 1");
  EXPECT_TRUE(has_event(EventKind::kAborted, "because its drafter was suspended"));
}

TEST_F(Beside, what_a_shadow_cannot_be_is_refused) {
  start_with({lookup("r", 4)});
  const auto expect = [&](const Result<RouteChange>& change, const std::string& words) {
    EXPECT_NE(refusal(change).find(words), std::string::npos) << refusal(change);
  };
  expect(engine_->set_traffic("r", {.is_shadow = true}), "the route has no candidate");
  stage(lookup("r", 6));
  expect(engine_->set_traffic("r", {.share_percent = 5, .is_shadow = true}),
         "INVALID_ARGUMENT: shadow: a shadow decides nothing, so it has no share");
  expect(engine_->set_traffic("r", {.is_shadow = true}, {.generation = 77}), "generation");
  ChangeOptions dry;
  dry.dry_run = true;
  good(engine_->set_traffic("r", {.is_shadow = true}, dry));
  expect_versions("live 1, staged 2");
  // Requests run with it.
  share(100);
  Pending slow = submit_slow(request(prompts()[3], "r", 60));
  slow.wait_for_tokens(2);
  expect(engine_->set_traffic("r", {.is_shadow = true}), "shadow: requests run with the candidate");
  expect(engine_->set_traffic("r", {.is_shadow = true}, dry), "shadow: requests run with");
  expect_versions("live 1, canary 2 at 100 %");
  slow.slow(false);
  slow.wait();
  wait_for([&] { return version(RouteState::kCanary).in_use == 0; });
  shadow();
  EXPECT_TRUE(engine_->set_traffic("r", {.is_shadow = true}).value().unchanged);
  good(engine_->promote_route("r", dry));
  expect_versions("live 1, shadow 2");
  good(engine_->delete_route("r"));
  stage(lookup("new", 4));
  expect(engine_->set_traffic("new", {.is_shadow = true}), "shadow: no live version");
}

TEST_F(Beside, a_reload_that_fails_leaves_a_shadow_as_it_was) {
  RouteOptions first = lookup("first", 4), shadowed = lookup("shadowed", 4);
  start_with({lookup("r", 4), first, shadowed});
  RouteOptions next = shadowed;
  next.draft_nodes_max = 3;
  stage(next);
  good(engine_->set_traffic("shadowed", {.is_shadow = true}));
  const auto states = [&] { return versions("first") + "; " + versions("shadowed"); };
  const auto failed = engine_->configure_routes({lookup("r", 4), broken("new", "no such mode")});
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(states(), "live 1; live 1, shadow 2") << "all of its routes or none";
  EXPECT_TRUE(engine_->configure_routes({lookup("r", 4)}).ok());
  wait_for([&] { return states() == "; "; });
}

TEST_F(Beside, a_wait_longer_than_a_call_may_take_is_refused) {
  start_with({lookup("r", 4)});
  RouteOptions wanted = guarded(lookup("x", 4), 6'000'000);
  const std::string why = refusal(engine_->apply_route(wanted));
  EXPECT_NE(
      why.find("routes.x.step_budget_us: expected at most call_ms_max (5000 ms), found 6000000"),
      std::string::npos)
      << why;
  wanted.call_ms_max = 0;
  good(engine_->apply_route(wanted));
}

TEST_F(Beside, a_storm_of_changes_with_shadows_and_guards_changes_no_token) {
  start_with({lookup("r", 4)});
  uint64_t drafted = 0;
  under_load([&] {
    for (int i = 0; i < 25; ++i) {
      const auto n = static_cast<int32_t>(2 + i % 4 + i % 2 * 4);
      RouteOptions next = i % 3 == 0 ? suffix("r") : lookup("r", n);
      next.probation_seconds = 60 + i;  // a new version each time
      stage(i % 2 == 0 ? guarded(next) : next);
      shadow();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      drafted += version(RouteState::kShadow).counts.drafted;
      if (i % 4 == 1) {
        abort();
        continue;
      }
      if (i % 4 != 2) share(20 + i);
      promote();
      if (i % 5 == 3) roll_back();
    }
  });
  EXPECT_GT(drafted, 0u);
}

}  // namespace
}  // namespace specd
