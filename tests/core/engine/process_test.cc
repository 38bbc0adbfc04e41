// Drafters in processes of their own: they draft what they draft in the step, and when a process dies, hangs or is
// stopped, its requests lose drafts and nothing else.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/run_within.h"
#include "core/base/sanitizer.h"
#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

class Process : public BesideRig {
 protected:
  // Drafts token 1, and does what `mode` says while hang() holds.
  RouteOptions fatal(const std::string& name, const std::string& mode) {
    RouteOptions wanted = route(
        name, plugin("specd.test.drafter_fatal", {{"mode", mode}, {"while", hang_file()}}), 4);
    wanted.call_ms_max = 300;
    return in_process(wanted, 300'000);
  }
  // Of the runners that this process has started.
  static std::vector<pid_t> runners() {
    std::vector<pid_t> all;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream children(task.path() / "children");
      for (pid_t pid = 0; children >> pid;) {
        std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
        std::string comm;
        if (std::getline(name, comm) && comm == "specd-runner") all.push_back(pid);
      }
    }
    return all;
  }
  size_t n_events(EventKind kind) const {
    const std::vector<EngineEvent> all = engine_->events(0, 1000);
    return static_cast<size_t>(std::count_if(
        all.begin(), all.end(), [&](const EngineEvent& each) { return each.kind == kind; }));
  }
};

TEST_F(Process, drafters_change_no_text_and_draft_what_they_draft_in_the_step) {
  const std::vector<RouteOptions> in_step = {
      lookup("lookup", 4), suffix("suffix"),
      route("lookahead", plugin("specd.drafter.lookahead"), 40),
      route("parts",
            plugin("specd.drafter.cascade", {{"drafters",
                                              {{{"plugin", "specd.drafter.prompt_lookup"}},
                                               {{"plugin", "specd.drafter.suffix"}}}}}),
            8)};
  start_both(in_step, [](RouteOptions each) { return in_process(std::move(each)); });
  EXPECT_EQ(runners().size(), in_step.size());
  expect_the_same_beside(in_step);
  audit();
  engine_.reset();
  EXPECT_EQ(runners().size(), 0u) << "they end with the engine";
}

// A tenant's second request is drafted from the first one's text, and another tenant's is not.
TEST_F(Process, a_drafter_with_a_pool_for_all_keeps_tenants_apart_wherever_it_works) {
  const RouteOptions pool =
      route("pool", plugin("specd.drafter.prompt_lookup", {{"max_draft_len", 4}}), 4);
  for (const RouteOptions& wanted : {pool, guarded(pool), in_process(pool)}) {
    start_with({wanted});
    const auto drafts_for = [&](const std::string& salt) {
      const RouteCounts before = report("pool").counts;
      Request r = request(prompts()[1], "pool", 40, 0.8f, 77);
      r.cache_salt = salt;
      EXPECT_FALSE(run(r).tokens.empty());
      const RouteCounts now = report("pool").counts;
      return std::pair(now.drafted - before.drafted, now.accepted - before.accepted);
    };
    const auto first = drafts_for("acme");
    EXPECT_EQ(drafts_for("other"), first);
    EXPECT_EQ(drafts_for(""), first);
    EXPECT_GT(drafts_for("acme").second, first.second);
    EXPECT_GT(drafts_for("").second, first.second);
    audit();
  }
}

TEST_F(Process, one_that_dies_costs_drafts_and_works_again) {
  const std::pair<const char*, const char*> deaths[] = {
      {"aborts", "SIGABRT"},
      {"exits", "exited with code 1"},
      {"segfaults", "SIGSEGV"},
      {"overflows_the_stack", "SIGSEGV"},
      {"takes_all_memory", "SIGABRT"},
      {"frees_twice", "SIGABRT"},
      {"overflows_the_heap", "SIGABRT"},
      {"forks", "SIGSYS"},
      {"starts_a_thread", "SIGSYS"},
      {"opens_a_socket", "SIGSYS"},
      {"kills_its_parent", "SIGSYS"},
      {"closes_all", "exited with code 1"},
      {"stops", "a call has not returned within call_ms_max, 300 ms"}};
  const Request off = request(prompts()[3], "off", 60);
  for (const auto& [mode, how] : deaths) {
    // A sanitizer ends the process in its own way, and takes all the addresses that there are; ThreadSanitizer does not
    // mind what is done to the heap.
    if (SPECD_HAS_SANITIZER && std::string(mode) == "takes_all_memory") continue;
    if (SPECD_TSAN && std::string(mode) == "frees_twice") continue;
    if (SPECD_TSAN && std::string(mode) == "overflows_the_heap") continue;
    start_with({fatal("r", mode)});
    const Outcome plain = run(off);
    Request r = off;
    r.route = "r";
    EXPECT_EQ(run(r).tokens, plain.tokens) << mode;
    const uint64_t drafted = report("r").counts.drafted;
    EXPECT_GT(drafted, 0u) << mode;
    hang();
    wait_for(
        [&] { return run(r).tokens == plain.tokens && n_events(EventKind::kProcessEnded) > 0; });
    go_on();
    wait_for([&] {
      return run(r).tokens == plain.tokens && report("r").counts.drafted > drafted &&
             n_events(EventKind::kProcessRestarted) > 0;
    });
    EXPECT_TRUE(has_event(EventKind::kProcessEnded, SPECD_HAS_SANITIZER ? "" : how))
        << mode << ": " << report("r").last_problem;
    EXPECT_EQ(report("r").state, RouteState::kLive) << mode;
    audit();
  }
}

// drafter_states writes every row with a hash of its hidden states, and the target's most likely tokens.
TEST_F(Process, it_sees_every_state_and_tells_its_metrics_and_its_memory) {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> figures;
  for (const bool is_beside : {false, true}) {
    const std::string file = folder_ + (is_beside ? "/beside" : "/in_step");
    const RouteOptions states = route(
        "states",
        plugin("specd.test.drafter_states", {{"file", file}, {"library", SPECD_TEST_FAKE_CUDA}}),
        3);
    RouteOptions lookahead = route("lookahead", plugin("specd.drafter.lookahead"), 40);
    if (is_beside) lookahead = in_process(lookahead);
    start_with({is_beside ? in_process(states) : states, lookahead});
    ASSERT_EQ(report("states").state, RouteState::kLive) << report("states").refused.to_string();
    run_all(all_requests("states", 24));
    EXPECT_EQ(report("states").counts.lost, 0u) << report("states").last_problem;
    EXPECT_EQ(report("states").counts.hidden_bytes > 0, is_beside);
    const auto told = [&] {
      std::string text = std::to_string(report("lookahead").memory_bytes) + " bytes";
      for (const PluginMetricReport& each : report("states").counts.of_plugins)
        text += ", " + each.name;
      return text;
    };
    if (is_beside) wait_for([&] { return told() == figures[0]; });
    figures.push_back(told());
    if (is_beside) {
      wait_for([&] {
        const auto metrics = report("states").counts.of_plugins;
        return !metrics.empty() && metrics[0].value > 0;
      });
    }
    audit();
    engine_.reset();
    std::ifstream in(file);
    lines.emplace_back();
    for (std::string line; std::getline(in, line);) lines.back().push_back(line);
    std::sort(lines.back().begin(), lines.back().end());
  }
  EXPECT_GT(lines[0].size(), 300u);
  EXPECT_EQ(lines[1], lines[0]);
  EXPECT_NE(figures[0].find("updates"), std::string::npos) << figures[0];
  EXPECT_NE(figures[0].substr(0, 2), "0 ") << figures[0];
}

// Before it is confined a drafter may start both; it writes their numbers into the file `left`.
TEST_F(Process, a_process_and_a_thread_that_it_has_left_behind_end_with_it) {
  start_with({lookup("r", 4)});
  const Outcome plain = run(request(prompts()[3], "off", 60));
  for (const char* mode : {"forks", "starts_a_thread"}) {
    RouteOptions wanted = fatal("x", mode);
    wanted.drafter.config["at"] = "create";
    wanted.drafter.config["left"] = folder_ + "/left";
    good(engine_->apply_route(wanted));
    EXPECT_EQ(run(request(prompts()[3], "x", 60)).tokens, plain.tokens) << mode;
    EXPECT_GT(report("x").counts.drafted, 0u) << mode;
    pid_t left = 0;
    std::ifstream(folder_ + "/left") >> left;
    ASSERT_GT(left, 1) << mode;
    const std::string status = "/proc/" + std::to_string(left) + "/status";
    EXPECT_TRUE(std::filesystem::exists(status)) << mode;
    good(engine_->delete_route("x"));
    // Whoever adopts it may not have reaped it yet.
    wait_for([&] {
      std::ifstream in(status);
      std::string line;
      while (std::getline(in, line) && line.rfind("State:", 0) != 0) {
      }
      return line.empty() || line.find('Z') != std::string::npos;
    });
    wait_for([&] { return runners().empty(); });
    EXPECT_EQ(runners().size(), 0u) << mode;
  }
}

TEST_F(Process, what_a_confined_one_may_not_do_fails) {
  start_with({fatal("r", "opens_a_file")});
  hang();
  const Outcome plain = run(request(prompts()[3], "off", 60));
  EXPECT_EQ(run(request(prompts()[3], "r", 60)).tokens, plain.tokens);
  EXPECT_GT(report("r").counts.drafted, 0u);
  EXPECT_EQ(n_events(EventKind::kProcessEnded), 0u) << report("r").last_problem;
}

TEST_F(Process, one_that_dies_again_and_again_is_quarantined_until_it_is_applied_again) {
  start_with({fatal("r", "aborts")});
  const Request r = request(prompts()[3], "r", 60);
  const Outcome plain = run(request(prompts()[3], "off", 60));
  hang();
  wait_for([&] { return run(r).tokens == plain.tokens && versions() == "quarantined 1"; });
  EXPECT_NE(version(RouteState::kQuarantined).last_problem.find("has died 5 times within 60 s"),
            std::string::npos)
      << version(RouteState::kQuarantined).last_problem;
  EXPECT_TRUE(has_event(EventKind::kQuarantined, "route r: generation 1 is quarantined"));
  EXPECT_EQ(n_events(EventKind::kProcessEnded), 5u);
  EXPECT_EQ(runners().size(), 0u);
  EXPECT_EQ(run(r).tokens, plain.tokens) << "requests that name it are decoded plainly";
  // The same again, by hand.
  go_on();
  good(engine_->apply_route(fatal("r", "aborts")));
  expect_versions("live 2");
  EXPECT_EQ(run(r).tokens, plain.tokens);
  EXPECT_GT(report("r").counts.drafted, 0u);
}

TEST_F(Process, one_that_dies_on_probation_flips_back) {
  start_with({lookup("r", 4)});
  const Request r = request(prompts()[3], "r", 60);
  const Outcome plain = run(request(prompts()[3], "off", 60));
  stage(fatal("r", "segfaults"));
  promote();
  hang();
  wait_for([&] { return run(r).tokens == plain.tokens && versions() == "live 1"; });
  EXPECT_TRUE(has_event(EventKind::kRolledBack, "generation 1 is live again"));
}

TEST_F(Process, a_crash_while_it_is_made_refuses_the_route_with_the_reason) {
  start_with({lookup("r", 4)});
  const auto refused = [&](const std::string& mode) {
    RouteOptions wanted = fatal("x", mode);
    wanted.drafter.config["at"] = "create";
    return refusal(engine_->apply_route(wanted));
  };
  for (const auto& [mode, how] : {std::pair("aborts", "killed by signal 6 (SIGABRT)"),
                                  {"exits", "exited with code 1"},
                                  {"segfaults", "killed by signal 11 (SIGSEGV)"}}) {
    const std::string why = refused(mode);
    EXPECT_NE(why.find("routes.x.drafter: plugin specd.test.drafter_fatal (x.drafter): create(): "
                       "its process has ended"),
              std::string::npos)
        << why;
    EXPECT_TRUE(SPECD_HAS_SANITIZER || why.find(how) != std::string::npos) << why;
  }
  setenv("SPECD_TEST_CONSTRUCTOR", "throws", 1);
  EXPECT_NE(refused("none").find("SIGABRT"), std::string::npos);
  unsetenv("SPECD_TEST_CONSTRUCTOR");
  expect_versions("live 1");
  EXPECT_EQ(runners().size(), 0u);
}

TEST_F(Process, one_that_is_never_made_is_killed_in_time) {
  EngineOptions o = options();
  o.plugin_control_seconds = 2;
  start_with({lookup("r", 4)}, o);
  RouteOptions wanted = fatal("x", "stops");
  wanted.drafter.config["at"] = "create";
  EXPECT_NE(refusal(engine_->apply_route(wanted))
                .find("create() has not returned within 1800 ms, so its process was killed"),
            std::string::npos);
  setenv("SPECD_TEST_CONSTRUCTOR", "sleeps", 1);
  wanted.drafter.config["mode"] = "none";
  EXPECT_NE(refusal(engine_->apply_route(wanted)).find("DEADLINE_EXCEEDED"), std::string::npos);
  unsetenv("SPECD_TEST_CONSTRUCTOR");
  EXPECT_EQ(runners().size(), 0u);
  EXPECT_EQ(n_late_works(), 0);
  wanted.drafter.config["at"] = "propose";
  good(engine_->apply_route(wanted));
}

TEST_F(Process, what_needs_the_model_is_refused_by_name) {
  EngineOptions o = options("pico-target");
  o.draft_models.push_back({.name = "draft", .path = std::string(SPECD_TEST_ZOO) + "/pico-draft"});
  start_with({lookup("r", 4)}, o);
  const std::string why = refusal(engine_->apply_route(
      in_process(route("x", plugin("specd.drafter.draft_target", {{"model", "draft"}}), 4))));
  EXPECT_NE(why.find("routes.x.isolation: drafter specd.drafter.draft_target cannot work beside "
                     "the step: it uses the service model/1"),
            std::string::npos)
      << why;
}

TEST_F(Process, a_shadow_accepts_what_it_accepts_when_it_is_live) {
  const RouteOptions live = lookup("r", 4);
  start_with({live}, options("pico-target"));
  const std::vector<Outcome> plain = run_all(all_requests("off", 48));
  stage(in_process(live));
  shadow();
  expect_identical(run_all(all_requests("r", 48)), plain, "with a shadow");
  const RouteCounts its = version(RouteState::kLive).counts;
  uint64_t counted = 0;
  wait_for([&] {
    // Steps read what it reports.
    run(request(prompts()[3], "r", 4));
    const uint64_t last = std::exchange(counted, version(RouteState::kShadow).counts.drafted);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return counted > 0 && counted >= last && counted - last < 20;
  });
  const RouteReport seen = version(RouteState::kShadow);
  EXPECT_GT(static_cast<double>(counted), 0.9 * static_cast<double>(its.drafted));
  const auto rate = [](const RouteCounts& counts) {
    return static_cast<double>(counts.accepted) / static_cast<double>(counts.drafted);
  };
  EXPECT_NEAR(rate(seen.counts), rate(its), 0.01);
  EXPECT_EQ(seen.counts.lost, 0u) << seen.last_problem;
  EXPECT_GT(seen.counts.begin.calls, 0u);
  share(100);
  expect_identical(run_all(all_requests("r", 48)), plain, "as a canary");
  shadow();
  promote();
  expect_identical(run_all(all_requests("r", 48)), plain, "live");
  EXPECT_EQ(runners().size(), 1u) << "it is the same process all the time";
  EXPECT_EQ(n_events(EventKind::kProcessEnded), 0u);
  audit();
}

TEST_F(Process, a_process_that_is_killed_or_stopped_from_outside_is_started_again) {
  RouteOptions wanted = in_process(lookup("r", 4), 100'000);
  wanted.call_ms_max = 300;
  start_with({wanted});
  const Request r = request(prompts()[3], "r", 150);
  const Outcome plain = run(request(prompts()[3], "off", 150));
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Pending slow = submit_slow(r);
    slow.wait_for_tokens(5);
    const std::vector<pid_t> before = runners();
    ASSERT_EQ(before.size(), 1u);
    ASSERT_EQ(kill(before[0], signal), 0);
    wait_for([&] {
      const std::vector<pid_t> now = runners();
      return now.size() == 1 && now != before;
    });
    const uint64_t drafted = report("r").counts.drafted;
    slow.slow(false);
    EXPECT_EQ(slow.wait().tokens, plain.tokens);
    wait_for([&] { return run(r).tokens == plain.tokens && report("r").counts.drafted > drafted; });
  }
  audit();
}

// SPECD_STORM_SECONDS: how long, 5 by default.
TEST_F(Process, a_storm_of_crashes_costs_drafts_only_and_each_version_is_applied_again) {
  const char* const wanted = std::getenv("SPECD_STORM_SECONDS");
  const std::chrono::seconds seconds(wanted == nullptr ? 5 : std::atoi(wanted));
  const char* modes[] = {"aborts", "overflows_the_stack", "stops", "frees_twice"};
  start_with({fatal("r", modes[0])});
  size_t n_quarantined = 0;
  under_load([&] {
    const auto end = std::chrono::steady_clock::now() + seconds;
    for (size_t i = 1; std::chrono::steady_clock::now() < end; ++i) {
      // From inside, or from outside, whenever it has drafted again: one that is stopped while it starts is waited
      // for as long as a plugin may take for that.
      const bool from_inside = i % 2 == 0;
      if (from_inside) hang();
      uint64_t drafted = report("r").counts.drafted;
      wait_for([&] {
        if (!from_inside && report("r").counts.drafted > drafted) {
          const std::vector<pid_t> killed = runners();
          for (const pid_t pid : killed) (void)kill(pid, i % 3 == 0 ? SIGSTOP : SIGKILL);
          if (!killed.empty()) wait_for([&] { return runners() != killed; });
          drafted = report("r").counts.drafted;
        }
        return versions().find("quarantined") != std::string::npos;
      });
      ++n_quarantined;
      go_on();
      good(engine_->apply_route(fatal("r", modes[i % std::size(modes)])));
      drafted = report("r").counts.drafted;
      wait_for([&] { return report("r").counts.drafted > drafted; });
    }
  });
  EXPECT_GT(n_quarantined, 0u);
  EXPECT_GE(n_events(EventKind::kProcessEnded), 4 * n_quarantined);
  EXPECT_GT(n_events(EventKind::kProcessRestarted), n_quarantined);
  EXPECT_GE(n_events(EventKind::kQuarantined), n_quarantined);
  audit();
}

}  // namespace
}  // namespace specd
