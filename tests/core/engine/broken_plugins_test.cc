// The table of core/plugin/README.md, "Broken plugins": what each breaks is named in the metrics and the events, with
// the plugin and the route, wherever the plugin runs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sanitizer.h"
#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

class BrokenPlugins : public BesideRig {
 protected:
  static constexpr char kDrafter[] = "specd.test.drafter_bad";
  static constexpr char kVerifier[] = "specd.test.verifier_bad";

  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Of the series of a metric that have these labels.
  double metric(const std::string& name, const Labels& labels) const {
    double sum = 0;
    for (const MetricFamily& family : engine_->metrics()) {
      if (family.name != name) continue;
      for (const MetricSeries& series : family.series) {
        const bool has_all = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
          return std::find(series.labels.begin(), series.labels.end(), label) !=
                 series.labels.end();
        });
        if (has_all) sum += series.value;
      }
    }
    return sum;
  }
  bool is_told(EventKind kind, const std::string& route, const std::string& words) const {
    for (const EngineEvent& each : engine_->events(0, 1024)) {
      if (each.kind == kind && each.route == route && each.text.find(words) != std::string::npos)
        return true;
    }
    return false;
  }
  // What is counted may be told a moment later.
  void expect_told(EventKind kind, const std::string& route, const std::string& words) {
    SCOPED_TRACE(route + ": " + words);
    wait_for([&] { return is_told(kind, route, words); });
  }
  static RouteOptions bad(const std::string& factory, const std::string& mode) {
    RouteOptions wanted =
        route(factory + "_" + mode,
              {.plugin = kDrafter, .factory = factory, .config = {{"mode", mode}}}, 8);
    return wanted;
  }
  // Each in the step, guarded and in a process.
  static std::vector<RouteOptions> everywhere(const std::vector<RouteOptions>& drafters) {
    std::vector<RouteOptions> all;
    for (const RouteOptions& each : drafters) {
      all.push_back(each);
      for (RouteOptions beside : {guarded(each), in_process(each)}) {
        beside.name += beside.isolation == Isolation::kProcess ? "_process" : "_guarded";
        all.push_back(std::move(beside));
      }
    }
    return all;
  }
  // Requests until it is so; none of them changes.
  template <typename Fn>
  void run_until_so(const std::string& name, Fn&& is_so) {
    const Request r = request(prompts()[3], name, 24);
    const Outcome plain = run(request(prompts()[3], "off", 24));
    wait_for([&] {
      EXPECT_EQ(run(r).tokens, plain.tokens) << name;
      return is_so();
    });
  }
};

TEST_F(BrokenPlugins, a_proposal_that_breaks_a_rule_is_counted_and_told_wherever_the_drafter_runs) {
  std::vector<RouteOptions> drafters;
  for (const char* mode : {"token_negative", "token_vocab", "token_min", "count_huge", "count_over",
                           "count_negative", "status_one", "status_one_unknown", "garbage"})
    drafters.push_back(bad("bad", mode));
  for (const char* mode :
       {"parent_forward", "parent_self", "parent_negative", "flags_garbage", "deep_chain"})
    drafters.push_back(bad("bad_tree", mode));
  const std::vector<RouteOptions> routes = everywhere(drafters);
  start_with(routes);
  for (const RouteOptions& each : routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    run_until_so(each.name, [&] {
      return metric("specd_plugin_defects_total", {{"route", each.name}, {"plugin", kDrafter}}) > 0;
    });
    expect_told(EventKind::kDefect, each.name, kDrafter);
  }
}

TEST_F(BrokenPlugins, a_call_that_fails_is_counted_told_and_suspends_wherever_the_drafter_runs) {
  const std::vector<std::pair<const char*, const char*>> modes = {
      {"status_error", "propose"}, {"status_unknown", "propose"}, {"update_fails", "update"}};
  std::vector<RouteOptions> drafters;
  for (const auto& [mode, call] : modes) drafters.push_back(bad("bad", mode));
  const std::vector<RouteOptions> routes = everywhere(drafters);
  start_with(routes);
  for (size_t i = 0; i < routes.size(); ++i) {
    const std::string& name = routes[i].name;
    run_until_so(name, [&] {
      return metric("specd_spec_decode_suspensions_total",
                    {{"route", name}, {"plugin", kDrafter}, {"rule", "defect"}}) > 0;
    });
    EXPECT_GE(metric("specd_plugin_failures_total",
                     {{"route", name}, {"plugin", kDrafter}, {"call", modes[i / 3].second}}),
              5)
        << name;
    expect_told(EventKind::kDefect, name, kDrafter);
    expect_told(EventKind::kSuspended, name, "by the rule defect");
  }
}

TEST_F(BrokenPlugins, a_sequence_that_it_refuses_is_counted_and_told_wherever_the_drafter_runs) {
  const std::vector<RouteOptions> routes = everywhere({bad("bad", "begin_fails")});
  start_with(routes);
  for (const RouteOptions& each : routes) {
    run_until_so(each.name, [&] {
      return metric("specd_spec_decode_lost_requests_total",
                    {{"route", each.name}, {"plugin", kDrafter}}) > 0;
    });
    expect_told(EventKind::kDefect, each.name, kDrafter);
  }
}

TEST_F(BrokenPlugins, one_that_is_slow_is_suspended_by_its_deadline_wherever_it_runs) {
  std::vector<RouteOptions> routes = everywhere({bad("bad", "slow")});
  routes[0].call_ms_max = 10;
  for (size_t i = 1; i < routes.size(); ++i) routes[i].step_budget_us = 5'000;
  start_with(routes);
  for (const RouteOptions& each : routes) {
    const Labels its{{"route", each.name}, {"plugin", kDrafter}};
    run_until_so(each.name, [&] { return metric("specd_spec_decode_suspensions_total", its) > 0; });
    expect_told(EventKind::kSuspended, each.name, "");
  }
  expect_told(EventKind::kSuspended, routes[0].name, "by the rule deadline: propose()");
}

TEST_F(BrokenPlugins, one_that_hangs_is_quarantined_or_its_process_is_killed) {
  std::vector<RouteOptions> routes = everywhere({hanging("hangs")});
  routes.erase(routes.begin());  // the step would hang
  for (RouteOptions& each : routes) each.step_budget_us = 20'000;
  start_with(routes);
  hang();
  run_until_so("hangs_process", [&] {
    return metric("specd_drafter_process_ends_total",
                  {{"route", "hangs_process"}, {"plugin", kDrafter}}) > 0;
  });
  expect_told(EventKind::kProcessEnded, "hangs_process", "has not returned");
  run_until_so("hangs_guarded", [&] {
    return metric("specd_route_quarantined", {{"route", "hangs_guarded"}, {"plugin", kDrafter}}) ==
           1;
  });
  expect_told(EventKind::kQuarantined, "hangs_guarded", "has not returned");
  expect_told(EventKind::kSetAside, "", kDrafter);
  go_on();
}

TEST_F(BrokenPlugins, a_process_that_dies_is_counted_and_told_until_it_is_quarantined) {
  constexpr char kFatal[] = "specd.test.drafter_fatal";
  start_with(
      {in_process(route("r", plugin(kFatal, {{"mode", "aborts"}, {"while", hang_file()}}), 4))});
  const Labels its{{"route", "r"}, {"plugin", kFatal}};
  EXPECT_EQ(metric("specd_drafter_process_ends_total", its), 0);
  hang();
  run_until_so("r", [&] { return metric("specd_route_quarantined", its) == 1; });
  EXPECT_EQ(metric("specd_drafter_process_ends_total", its), 5);
  expect_told(EventKind::kProcessEnded, "r",
              SPECD_HAS_SANITIZER ? "" : "killed by signal 6 (SIGABRT)");
  expect_told(EventKind::kQuarantined, "r", "has died 5 times");
}

TEST_F(BrokenPlugins, a_verdict_that_breaks_a_rule_is_counted_and_told) {
  std::vector<RouteOptions> routes;
  // Of these a chain of wrong tokens is enough; the others need trees (Identity).
  for (const char* mode :
       {"path_out_of_range", "path_repeats", "next_negative", "next_vocab", "count_huge",
        "count_over", "count_negative", "status_error", "status_unknown", "status_one"})
    routes.push_back(
        route(mode, plugin(kDrafter, {{"mode", "wrong"}}), 4, plugin(kVerifier, {{"mode", mode}})));
  for (RouteOptions& each : routes) each.drafter.factory = "bad";
  start_with(routes);
  for (const RouteOptions& each : routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    run_until_so(each.name, [&] {
      return metric("specd_plugin_defects_total", {{"route", each.name}, {"plugin", kVerifier}}) >
             0;
    });
    EXPECT_EQ(metric("specd_plugin_defects_total", {{"route", each.name}, {"plugin", kDrafter}}),
              0);
    expect_told(EventKind::kDefect, each.name, kVerifier);
  }
}

}  // namespace
}  // namespace specd
