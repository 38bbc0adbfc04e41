// Memory of routes: what a change may take, what each version has, and versions that end before the next is made.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/engine/beside_rig.h"

namespace specd {
namespace {

constexpr uint64_t kHeldByDrafter = 4 << 20;  // of the fixture's mode `hold`

class RouteMemories : public BesideRig {
 protected:
  // A drafter that holds kHeldByDrafter.
  RouteOptions holding(const std::string& name, int depth, Replace replace = Replace::kOverlap) {
    return fixture_route(name, "hold", depth, replace);
  }
  RouteOptions fixture_route(const std::string& name, const std::string& mode, int depth,
                             Replace replace = Replace::kOverlap) {
    RouteOptions wanted =
        route(name, plugin("org.example.fixture", {{"log", log()}, {"depth", depth}}), 4);
    if (!mode.empty()) wanted.drafter.config["mode"] = mode;
    wanted.replace = replace;
    return wanted;
  }
  std::string log() const { return folder_ + "/life"; }
  // What happened to instances, in order.
  std::string life() const {
    std::ifstream in(log());
    std::string all;
    for (std::string line; std::getline(in, line);) {
      if (line == "create" || line == "activate" || line == "destroy")
        all += (all.empty() ? "" : " ") + line;
    }
    return all;
  }
  // An engine whose rank may take `extra` bytes more than the plan of these routes.
  void start_limited(const std::vector<RouteOptions>& routes, uint64_t extra) {
    tree_.add("a", read_bytes(fixture("good")));
    EngineOptions o = options();
    o.max_sequences = 8;
    EngineOptions planned = o;
    planned.plugin_directories.push_back(tree_.plugins());
    planned.routes = routes;
    planned.plugin_cache_directory = folder_ + "/checked";
    const MemoryPlan plan = check_options(planned).value();
    limit_ = extra;
    for (const MemoryPlan::Line& line : plan.lines) limit_ += line.bytes.front();
    o.rank_bytes_max = limit_;
    std::filesystem::remove(log());
    start_with(routes, o);
  }
  // Lines of route r: what they are, and what they hold.
  std::string lines(const std::string& of = " of route r") const {
    std::string all;
    for (const MemoryLine& line : engine_->memory()) {
      if (line.what.find(of) != std::string::npos)
        all += line.what + " " + std::to_string(line.held.front()) + "; ";
    }
    return all;
  }
  uint64_t ring_bytes(RouteState state) const {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == "r" && each.state == state) return each.ring_bytes;
    }
    return 0;
  }
  size_t n_events(EventKind kind) const {
    const std::vector<EngineEvent> all = engine_->events(0, 1000);
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& each) { return each.kind == kind; }));
  }
  void expect_plain(const std::string& prompt, int32_t n_tokens = 24) {
    const Outcome plain = run(request(prompt, "off", n_tokens));
    EXPECT_EQ(run(request(prompt, "r", n_tokens)).tokens, plain.tokens);
  }

  uint64_t limit_ = 0;
};

TEST_F(RouteMemories, a_version_without_room_beside_the_old_is_refused_before_it_is_made) {
  start_limited({holding("r", 1)}, kHeldByDrafter / 2);
  const auto expect_refused = [&](const Result<RouteChange>& change) {
    ASSERT_FALSE(change.ok());
    EXPECT_EQ(change.status().code(), Code::kExhausted);
    EXPECT_EQ(change.status().field(), "routes.r.replace");
    const std::string text = change.status().message();
    for (const std::string& words :
         {std::string("may take 4194304 bytes"),
          std::string("has 2097152 left of ") + std::to_string(limit_),
          std::string("engine.rank_bytes_max"), std::string("route r, generation 1 (live) 4194304"),
          std::string("replace: stop_first")}) {
      EXPECT_NE(text.find(words), std::string::npos) << text << "\nlacks " << words;
    }
  };
  expect_refused(engine_->apply_route(holding("r", 2)));
  expect_refused(engine_->apply_route(holding("r", 2), {.dry_run = true}));
  expect_refused(engine_->stage_route(holding("r", 2)));
  // A route beside it has nothing that could stop first.
  const auto another = engine_->apply_route(holding("s", 2));
  ASSERT_FALSE(another.ok());
  EXPECT_EQ(another.status().field(), "routes.s");
  EXPECT_NE(another.status().message().find("delete routes that hold much"), std::string::npos);
  EXPECT_EQ(life(), "create activate");
  expect_versions("live 1");
  // What fits is made, and its peak told.
  const uint64_t small = good(engine_->stage_route(fixture_route("r", "", 2)));
  EXPECT_EQ(small, 2u);
  const auto told = engine_->promote_route("r", {.dry_run = true});
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told.value().memory_limit_bytes, limit_);
  EXPECT_EQ(told.value().memory_peak_bytes, limit_ - kHeldByDrafter / 2 + 1024);
}

TEST_F(RouteMemories, stopping_first_makes_room_and_no_token_changes) {
  start_limited({holding("r", 1)}, kHeldByDrafter / 2);
  const std::string before = lines();
  constexpr int kChanges = 6;
  under_load([&] {
    for (int i = 0; i < kChanges; ++i) {
      const auto done = engine_->apply_route(holding("r", 2 + i % 2, Replace::kStopFirst));
      ASSERT_TRUE(done.ok()) << done.status().to_string();
      EXPECT_EQ(done.value().generation, static_cast<uint64_t>(2 + i));
      EXPECT_LE(done.value().memory_peak_bytes, limit_);
      EXPECT_EQ(versions(), "live " + std::to_string(2 + i)) << "nothing drains";
    }
  });
  EXPECT_EQ(lines(), before);
  std::string wanted = "create activate";
  for (int i = 0; i < kChanges; ++i) wanted += " destroy create activate";
  EXPECT_EQ(life(), wanted);
  EXPECT_EQ(n_events(EventKind::kStopped), static_cast<size_t>(kChanges));
  EXPECT_TRUE(has_event(EventKind::kStopped, "route r: generation 1 ends to make room"));
  EXPECT_TRUE(has_event(EventKind::kApplied, "route r: generation 2 is live"));
}

TEST_F(RouteMemories, requests_that_run_go_on_without_drafts_when_their_version_stops) {
  start_limited({holding("r", 1)}, kHeldByDrafter / 2);
  Request r = request(prompts()[0], "off", 300);
  const Outcome plain = run(r);
  r.route = "r";
  Pending running = submit_slow(r);
  running.wait_for_tokens(2);
  const RouteOptions next = holding("r", 2, Replace::kStopFirst);
  const auto dry = engine_->apply_route(next, {.dry_run = true});
  ASSERT_TRUE(dry.ok()) << dry.status().to_string();
  EXPECT_EQ(dry.value().n_dropped, 1);
  EXPECT_EQ(dry.value().memory_peak_bytes, limit_ - kHeldByDrafter / 2);
  EXPECT_EQ(life(), "create activate") << "a dry run makes and stops nothing";
  EXPECT_EQ(versions(), "live 1");
  const auto done = engine_->apply_route(next);
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_EQ(done.value().n_dropped, 1);
  EXPECT_EQ(life(), "create activate destroy create activate");
  running.slow(false);
  EXPECT_EQ(running.wait().tokens, plain.tokens);
  expect_plain(prompts()[1]);
  EXPECT_GT(report("r").counts.requests, 0u) << "the new version serves";
}

TEST_F(RouteMemories, a_new_version_that_fails_brings_the_old_one_back) {
  start_limited({holding("r", 1)}, kHeldByDrafter / 2);
  uint64_t generation = 1;
  for (const char* mode : {"create_fails", "no_instance", "activate_fails"}) {
    const auto done = engine_->apply_route(fixture_route("r", mode, 2, Replace::kStopFirst));
    ASSERT_FALSE(done.ok()) << mode;
    ++generation;
    EXPECT_EQ(done.status().field(), "routes.r.drafter") << mode;
    EXPECT_NE(done.status().message().find("; the version before is live again, as generation " +
                                           std::to_string(generation)),
              std::string::npos)
        << done.status().message();
    EXPECT_EQ(versions(), "live " + std::to_string(generation));
    EXPECT_EQ(report("r").options.drafter, holding("r", 1).drafter);
    EXPECT_TRUE(has_event(EventKind::kRolledBack, "the new version failed: drafter"));
    expect_plain(prompts()[0]);
  }
  // What fails before it is made stops nothing.
  const auto refused =
      engine_->apply_route(fixture_route("r", "describe_refuses", 2, Replace::kStopFirst));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(versions(), "live " + std::to_string(generation));
  EXPECT_EQ(n_events(EventKind::kStopped), 3u);
}

TEST_F(RouteMemories, when_the_old_one_fails_too_the_route_goes_on_without_drafts) {
  const std::string bytes = read_bytes(fixture("newer"));
  RouteOptions old = holding("r", 1);
  old.drafter.plugin += "@1.0.0";
  start_limited({old}, kHeldByDrafter / 2);
  tree_.add("b", bytes, BundleTree::manifest(bytes, "2.0.0"));
  std::filesystem::remove_all(tree_.bundle("a"));
  Pending running = submit_slow(request(prompts()[2], "r", 100));
  running.wait_for_tokens(2);
  const auto done =
      engine_->apply_route(fixture_route("r", "create_fails", 2, Replace::kStopFirst));
  ASSERT_FALSE(done.ok());
  for (const char* words : {"the table is cut off", "goes on without drafts", "is not there"}) {
    EXPECT_NE(done.status().message().find(words), std::string::npos) << done.status().message();
    EXPECT_NE(report("r").refused.message().find(words), std::string::npos);
    EXPECT_TRUE(has_event(EventKind::kStopped, words)) << words;
  }
  EXPECT_EQ(report("r").state, RouteState::kStopped);
  EXPECT_TRUE(report("r").suspended);
  EXPECT_EQ(lines(), "") << "it has no instances";
  running.slow(false);
  const Outcome plain = run(request(prompts()[2], "off", 100));
  EXPECT_EQ(running.wait().tokens, plain.tokens);
  expect_plain(prompts()[0]);
  // It is a route all the same: it is changed, or gets a candidate, as others are.
  RouteOptions next = holding("r", 2);
  EXPECT_EQ(stage(next), 2u);
  expect_versions("stopped 0, staged 2");
  promote();
  expect_versions("live 2");
  expect_plain(prompts()[0]);
  next.drafter.config["depth"] = 3;
  next.replace = Replace::kStopFirst;
  good(engine_->apply_route(next));
  expect_versions("live 3");
}

TEST_F(RouteMemories, what_cannot_stop_first_is_refused_or_overlaps) {
  start_limited({holding("r", 1)}, kHeldByDrafter / 2);
  const RouteOptions next = holding("r", 2, Replace::kStopFirst);
  EXPECT_NE(refusal(engine_->stage_route(next))
                .find("INVALID_ARGUMENT: routes.r.replace: expected overlap"),
            std::string::npos)
      << refusal(engine_->stage_route(next));
  EXPECT_NE(refusal(engine_->apply_route(next, {.running = RunningRequests::kAttach}))
                .find("INVALID_ARGUMENT: routes.r.replace: expected overlap with running: attach"),
            std::string::npos);
  // A configuration is taken as a whole, so its routes overlap.
  const auto read = engine_->configure_routes({next});
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().field(), "routes.r.replace");
  EXPECT_EQ(versions(), "live 1");
  EXPECT_EQ(life(), "create activate");
  // A route that has nothing to stop is just made.
  good(engine_->apply_route(fixture_route("s", "", 1, Replace::kStopFirst)));
  EXPECT_EQ(n_events(EventKind::kStopped), 0u);
  EXPECT_EQ(versions("s"), "live 2");
}

TEST_F(RouteMemories, a_configuration_is_planned_as_a_whole) {
  start_limited({holding("r", 1)}, kHeldByDrafter + kHeldByDrafter / 2);
  const auto read = engine_->configure_routes({holding("r", 1), holding("s", 1), holding("t", 1)});
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().field(), "routes.t");
  EXPECT_NE(read.status().message().find("route s (to be made) 4194304"), std::string::npos)
      << read.status().message();
  EXPECT_EQ(life(), "create activate");
  ASSERT_TRUE(engine_->configure_routes({holding("r", 1), holding("s", 1)}).ok());
}

// Rings: each version that works beside the step has a line, and the bytes go with the thread or process.
TEST_F(RouteMemories, the_rings_of_each_version_are_planned_and_counted) {
  RouteOptions r = guarded(lookup("r", 4));
  start_limited({r, lookup("s", 4)}, 64 << 20);
  const uint64_t rings = ring_bytes(RouteState::kLive);
  EXPECT_GT(rings, 0u);
  const auto line_of = [&](const std::string& what) {
    for (const MemoryLine& line : engine_->memory()) {
      if (line.what == what) return line;
    }
    return MemoryLine{};
  };
  const MemoryLine live = line_of("calls beside the step of route r");
  ASSERT_FALSE(live.planned.empty());
  EXPECT_EQ(live.held.front(), rings);
  EXPECT_EQ(live.planned.front(), rings) << "what was planned is what is there";
  EXPECT_TRUE(line_of("calls beside the step of route s").held.empty());
  // A shadow has rings, a candidate in the step has none.
  const auto peak = [&] {
    return engine_->abort_route("r", {.dry_run = true}).value().memory_peak_bytes;
  };
  stage(lookup("r", 2));
  const uint64_t staged = peak();
  const auto dry = engine_->set_traffic("r", {.is_shadow = true}, {.dry_run = true});
  ASSERT_TRUE(dry.ok());
  EXPECT_EQ(dry.value().memory_peak_bytes, staged + ring_bytes(RouteState::kLive));
  shadow();
  EXPECT_EQ(peak(), dry.value().memory_peak_bytes);
  EXPECT_EQ(line_of("calls beside the step of route r (shadow)").held.front(),
            ring_bytes(RouteState::kShadow));
  expect_plain(prompts()[0]);
  share(0);
  EXPECT_EQ(ring_bytes(RouteState::kStaged), 0u);
  EXPECT_EQ(peak(), staged);
  abort();
  expect_versions("live 1");
  // A process has them, too, and each life new ones.
  good(engine_->apply_route(in_process(lookup("r", 4))));
  expect_versions("live 3");
  EXPECT_EQ(ring_bytes(RouteState::kLive), rings) << "the same calls";
  expect_plain(prompts()[0]);
  good(engine_->apply_route(lookup("r", 4)));
  expect_versions("live 4");
  EXPECT_EQ(ring_bytes(RouteState::kLive), 0u);
  EXPECT_EQ(lines("calls beside"), "");
  good(engine_->delete_route("r"));
  expect_versions("");
  EXPECT_EQ(lines(), "");
}

TEST_F(RouteMemories, a_shadow_without_room_for_its_rings_is_refused) {
  start_limited({lookup("r", 4)}, 4096);
  stage(fixture_route("r", "", 2));
  const auto done = engine_->set_traffic("r", {.is_shadow = true});
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.status().code(), Code::kExhausted);
  EXPECT_EQ(done.status().field(), "shadow");
  EXPECT_NE(done.status().message().find("calls beside the step "), std::string::npos);
  expect_versions("live 1, staged 2");
}

}  // namespace
}  // namespace specd
