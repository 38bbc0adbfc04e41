// Routes are changed while requests run. Texts are compared with plain decoding, the life of
// instances with what a plugin wrote down about itself, memory with what the kernel says.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/sanitizer.h"
#include "tests/core/engine_rig.h"
#include "tests/core/plugin/bundle_fixture.h"

namespace specd {
namespace {

using std::chrono::milliseconds;

constexpr bool kKeepsFreedMemory = SPECD_HAS_SANITIZER;

class Routes : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    plain_.clear();
  }

  // An engine whose directories are the shipped plugins, the broken ones, and one that tests fill.
  EngineOptions with_tree(std::vector<RouteOptions> routes = {}) {
    EngineOptions o = options();
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.plugin_directories.push_back(tree_.plugins());
    o.routes = std::move(routes);
    return o;
  }
  static RouteOptions lookup(const std::string& name, int32_t k = 4) {
    return route(
        name,
        plugin("specd.drafter.prompt_lookup",
               {{"num_speculative_tokens", k}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}}),
        k);
  }
  static RouteOptions fixture_route(const std::string& name, Json config = Json::object()) {
    return route(name, plugin("org.example.fixture", std::move(config)), 4);
  }
  // Greedy outcomes of all prompts without drafts; and a file with them for the replay drafter.
  void plain(int32_t n_tokens) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) all.push_back(request(prompt, "off", n_tokens));
    plain_ = run_all(all);
    record_ = record(all, plain_);
  }
  RouteOptions replay(const std::string& name, int32_t k) {
    return route(name, plugin("specd.drafter.replay", {{"file", record_}, {"draft_tokens", k}}), k);
  }

  RouteChange apply(const RouteOptions& wanted, const std::string& request_id = "") {
    const auto change = engine_->apply_route(wanted, {.request_id = request_id});
    EXPECT_TRUE(change.ok()) << change.status().to_string();
    return change.ok() ? change.value() : RouteChange();
  }
  Status refused(const RouteOptions& wanted) {
    const auto change = engine_->apply_route(wanted);
    EXPECT_FALSE(change.ok()) << wanted.name << " was applied";
    return change.ok() ? Status() : change.status();
  }
  std::vector<RouteReport> draining() const {
    std::vector<RouteReport> all;
    for (const RouteReport& each : engine_->routes()) {
      if (each.state == RouteState::kDraining) all.push_back(each);
    }
    return all;
  }
  void expect_all_retired() {
    EXPECT_TRUE(eventually([this] { return draining().empty(); })) << draining().size();
  }
  static bool eventually(const std::function<bool()>& condition) {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
         std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(milliseconds(2))) {
      if (condition()) return true;
    }
    return false;
  }
  PluginReport plugin_report(const std::string& id) const {
    for (const PluginReport& each : engine_->plugins()) {
      if (each.id == id) return each;
    }
    return {};
  }
  // Lines of a file that are `word`.
  static int64_t count_lines(const std::string& file, const std::string& word) {
    std::ifstream in(file);
    int64_t n = 0;
    for (std::string line; std::getline(in, line);) n += line == word ? 1 : 0;
    return n;
  }
  // Libraries out of plugin caches that are mapped.
  static size_t mapped_modules() {
    std::ifstream in("/proc/self/maps");
    std::set<std::string> paths;
    for (std::string line; std::getline(in, line);) {
      const size_t at = line.find("/cache/");
      if (at != std::string::npos) paths.insert(line.substr(at));
    }
    return paths.size();
  }

  BundleTree tree_;
  std::vector<Outcome> plain_;
  std::string record_;
};

TEST_F(Routes, requests_finish_on_the_pair_they_were_admitted_with_and_new_ones_get_the_new) {
  constexpr int32_t kTokens = 300;
  EngineOptions o = with_tree();
  o.max_sequences = 2;
  start(o);
  const Request r0 = request(prompts()[2], "r", kTokens);
  Request off = r0;
  off.route = "off";
  const Outcome whole = run(off);
  record_ = record({r0}, {whole});
  EXPECT_EQ(apply(replay("r", 1)).generation, 2u);

  std::vector<Pending> old;
  for (int i = 0; i < 3; ++i) old.push_back(submit_slow(r0));  // two run, one waits
  old[0].wait_for_tokens(5);
  const RouteChange change = apply(replay("r", 4));
  EXPECT_EQ(change.generation, 3u);
  EXPECT_FALSE(change.unchanged);
  ASSERT_EQ(draining().size(), 1u);
  EXPECT_EQ(draining()[0].name(), "r");
  EXPECT_EQ(draining()[0].generation, 2u);
  EXPECT_EQ(draining()[0].in_use, 3);
  EXPECT_EQ(draining()[0].draft_nodes_max, 1);
  EXPECT_EQ(report("r").state, RouteState::kLive);
  EXPECT_EQ(report("r").generation, 3u);
  EXPECT_EQ(report("r").in_use, 0);
  Pending fresh = submit(r0);
  EXPECT_EQ(report("r").in_use, 1);

  // Every draft is accepted, so the steps tell the draft length of each request.
  for (Pending& each : old) each.slow(false);
  for (Pending& each : old) {
    const Outcome outcome = each.wait();
    EXPECT_EQ(outcome.tokens, whole.tokens);
    EXPECT_EQ(outcome.usage.steps, 1 + (kTokens - 1 + 1) / 2);
  }
  const Outcome outcome = fresh.wait();
  EXPECT_EQ(outcome.tokens, whole.tokens);
  EXPECT_EQ(outcome.usage.steps, 1 + (kTokens - 1 + 4) / 5);
  expect_all_retired();
  EXPECT_EQ(report("r").counts.requests, 4u) << "counts go on over generations";
  EXPECT_EQ(report("r").in_use, 0);
  EXPECT_GT(report("r").counts.propose.calls, 0u);
}

TEST_F(Routes, twenty_changes_a_second_change_no_token_of_sixteen_running_requests) {
  constexpr int32_t kTokens = 48;
  constexpr int kChanges = 60;
  EngineOptions o = with_tree({lookup("r")});
  o.default_route = "r";
  start(o);
  plain(kTokens);
  std::vector<RouteOptions> choices{lookup("r", 5), replay("r", 3), lookup("r", 2), replay("r", 7)};
  choices.push_back(
      route("r", plugin("specd.test.drafter_taps", {{"file", folder_ + "/taps"}}), 2));
  const Json suffix = {{"max_branches", 2}, {"max_spec_factor", 2}};
  const Json lookahead = {{"window", 3}, {"ngram", 3}, {"guesses", 2}};
  choices.push_back(route("r", plugin("specd.drafter.suffix", suffix), 8));
  choices.push_back(route("r", plugin("specd.drafter.lookahead", lookahead), 10));
  choices.push_back(
      route("r",
            plugin("specd.drafter.cascade",
                   {{"drafters",
                     {{{"plugin", "specd.drafter.suffix"}, {"config", suffix}},
                      {{"plugin", "specd.drafter.lookahead"}, {"config", lookahead}}}},
                    {"min_nodes", {2}}}),
            10));
  for (const char* mode : {"wrong", "garbage", "update_fails"}) {
    choices.push_back(route(
        "r", {.plugin = "specd.test.drafter_bad", .factory = "bad", .config = {{"mode", mode}}},
        8));
  }
  choices.push_back(
      route("r",
            plugin("specd.drafter.replay", {{"file", record_},
                                            {"acceptance", 0.6},
                                            {"draft_tokens", 4},
                                            {"tree", {{"nodes", 16}, {"probes", 4}}}}),
            8));

  std::atomic<bool> done{false};
  std::atomic<uint64_t> ended{0}, wrong{0};
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 16; ++c) {
    clients.emplace_back([&, c] {
      for (size_t i = c; !done; ++i) {
        const size_t prompt = i % prompts().size();
        const Outcome outcome = run(request(prompts()[prompt], "", kTokens));
        ++ended;
        if (outcome.tokens != plain_[prompt].tokens || outcome.text != plain_[prompt].text) ++wrong;
      }
    });
  }
  std::set<uint64_t> generations;
  size_t most_draining = 0;
  for (int i = 0; i < kChanges; ++i) {
    const auto next = std::chrono::steady_clock::now() + milliseconds(50);
    const RouteChange change = apply(choices[static_cast<size_t>(i) % choices.size()]);
    EXPECT_FALSE(change.unchanged);
    generations.insert(change.generation);
    most_draining = std::max(most_draining, draining().size());
    std::this_thread::sleep_until(next);
  }
  done = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(ended, 16u);
  EXPECT_GT(most_draining, 0u) << "nothing ran while routes were changed";
  EXPECT_EQ(generations.size(), static_cast<size_t>(kChanges));
  expect_all_retired();
}

// Each way in which making a route can fail, at each stage, leaves everything as it was.
TEST_F(Routes, a_change_that_fails_at_any_stage_changes_nothing) {
  constexpr int32_t kTokens = kKeepsFreedMemory ? 300 : 1000;
  const std::string good = read_bytes(fixture("good"));
  tree_.add("a", good);
  start(with_tree({fixture_route("r"), lookup("neighbour")}));
  Request r = request(prompts()[2], "off", kTokens);
  const Outcome whole = run(r);
  r.route = "neighbour";
  Pending neighbour = submit(r);
  r.route = "r";
  Pending mine = submit(r);
  int failures = 0;
  const auto expect = [&](const RouteOptions& wanted, const std::vector<std::string>& words) {
    const Status status = refused(wanted);
    for (const std::string& word : words) {
      EXPECT_NE(status.text().find(word), std::string::npos)
          << status.to_string() << "\nlacks " << word;
    }
    EXPECT_EQ(report("r").state, RouteState::kLive);
    EXPECT_EQ(report("r").generation, 1u);
    EXPECT_TRUE(draining().empty());
    for (const RouteReport& each : engine_->routes()) {
      EXPECT_TRUE(each.name() == "off" || each.name() == "r" || each.name() == "neighbour")
          << each.name();
    }
    ++failures;
  };

  // What the engine says before any plugin is asked.
  RouteOptions bad = fixture_route("");
  expect(bad, {"expected a name, found an empty one"});
  expect(fixture_route("off"), {"'off'", "reserved"});
  expect(fixture_route("a b"), {"routes.a b: expected printable ASCII", "at byte 1"});
  bad = fixture_route("r");
  bad.draft_nodes_max = 0;
  expect(bad, {"routes.r.draft_nodes_max", "1 to 1024"});
  bad = fixture_route("r");
  bad.model = "another";
  expect(bad, {"routes.r.model", "'pico-draft'", "'another'"});
  bad.model.clear();
  bad.drafter.plugin = "org.example.absent";
  expect(bad, {"routes.r.drafter.plugin: ", "'org.example.absent' is not there"});
  // Discovery and loading: the bundle of the live route is replaced by a bad one.
  const auto replaced = [&](const std::string& bytes, const Json& manifest,
                            const std::vector<std::string>& words) {
    tree_.add("a", bytes, manifest);
    expect(fixture_route("r", {{"depth", 2}}), words);
    EXPECT_EQ(plugin_report("org.example.fixture").state, PluginState::kRefused);
    for (const std::string& word : words) {
      EXPECT_NE(plugin_report("org.example.fixture").reason.find(word), std::string::npos);
    }
  };
  const auto library = [&](const char* name, const std::vector<std::string>& words) {
    const std::string bytes = read_bytes(fixture(name));
    replaced(bytes, BundleTree::manifest(bytes), words);
  };
  replaced(good.substr(0, good.size() / 2), BundleTree::manifest(good), {"hash mismatch"});
  const std::string cut = good.substr(0, good.size() / 2);
  replaced(cut, BundleTree::manifest(cut), {"a/plugin.so"});
  library("no_entry", {"specd_plugin_entry_v0"});
  library("two_exports", {"exactly one exported symbol"});
  library("other_layout", {"another plugin_api"});
  library("no_table", {"stored no table"});
  library("struct_size", {"struct_size"});
  library("null_function", {"'propose' is null"});
  library("undefined", {"specd_test_symbol_that_nobody_defines"});
  library("init_fails", {"init() returned", "no device here"});
  // The factory, its configuration, describe(), create(), activate(), static_tree(), the pair.
  tree_.add("a", good);
  bad = fixture_route("r");
  bad.drafter.factory = "none";
  expect(bad, {"factory 'none' makes a verifier"});
  expect(fixture_route("r", {{"deep", 1}}), {"config", "'deep'"});
  expect(fixture_route("r", {{"mode", "describe_refuses"}}), {"describe()", "not mine"});
  expect(fixture_route("r", {{"mode", "no_device"}}), {"device"});
  expect(fixture_route("r", {{"mode", "bad_tap"}}), {"tap"});
  expect(fixture_route("r", {{"mode", "absent_service"}}), {"org.example.absent/1"});
  expect(fixture_route("r", {{"mode", "create_fails"}}), {"create()", "the table is cut off"});
  expect(fixture_route("r", {{"mode", "no_instance"}}), {"create()", "no instance"});
  expect(fixture_route("r", {{"mode", "activate_fails"}}), {"activate()", "SPECD_E_DEVICE"});
  expect(fixture_route("r", {{"mode", "static_bad"}}), {"static_tree()"});
  bad = fixture_route("r");
  bad.verifier = plugin("specd.test.verifier_bad", {{"mode", "nonsense"}});
  expect(bad, {"specd.test.verifier_bad", "nonsense"});
  bad = route(
      "r",
      {.plugin = "specd.test.drafter_bad", .factory = "bad_tree", .config = {{"mode", "wrong"}}}, 4,
      {.plugin = "org.example.fixture", .factory = "none", .config = Json::object()});
  expect(bad, {"reaches guarantee 'unusable'", "trees of mode variable"});
  EXPECT_GT(failures, 25);

  EXPECT_EQ(mine.wait().tokens, whole.tokens);
  EXPECT_EQ(neighbour.wait().tokens, whole.tokens);
  EXPECT_EQ(report("r").counts.requests, 1u);
  EXPECT_GT(report("r").counts.drafted, 0u);
  EXPECT_EQ(run(r).tokens, whole.tokens) << "the live route still serves";
  // And a good one after all that goes through.
  EXPECT_EQ(apply(fixture_route("r", {{"depth", 2}})).generation, 2u);
}

TEST_F(Routes, a_failed_change_of_a_new_name_leaves_no_trace) {
  start(with_tree());
  const std::string log = folder_ + "/life";
  tree_.add("a", read_bytes(fixture("good")));
  RouteOptions wanted = fixture_route("r", {{"log", log}});
  wanted.verifier.plugin = "org.example.absent";
  EXPECT_NE(refused(wanted).text().find("org.example.absent"), std::string::npos);
  EXPECT_EQ(count_lines(log, "create"), 0) << "the pair is checked before it is made";
  wanted = fixture_route("r", {{"log", log}, {"mode", "activate_fails"}});
  EXPECT_NE(refused(wanted).text().find("SPECD_E_DEVICE"), std::string::npos);
  EXPECT_EQ(count_lines(log, "create"), 1);
  EXPECT_EQ(count_lines(log, "destroy"), 1);
  EXPECT_EQ(engine_->routes().size(), 1u);
  const auto id = engine_->submit(request("x", "r", 4), [](const Event&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_NE(id.status().text().find("no route is called 'r'"), std::string::npos);
}

TEST_F(Routes, retired_instances_give_their_memory_back_and_code_is_loaded_once) {
  constexpr int kChanges = kKeepsFreedMemory ? 12 : 80;
  constexpr uint64_t kHeldBytes = 4 << 20;  // of the fixture's mode `hold`
  tree_.add("a", read_bytes(fixture("good")));
  const std::string log = folder_ + "/life";
  start(with_tree({fixture_route("r", {{"mode", "hold"}, {"log", log}})}));
  const Outcome whole = run(request(prompts()[0], "off", 24));
  const auto resident_bytes = [] {
    malloc_trim(0);  // a loaded machine retires many at once, and what they freed may stay resident
    std::ifstream in("/proc/self/statm");
    uint64_t size = 0, resident = 0;
    in >> size >> resident;
    return resident * 4096;
  };
  const auto change = [&](int i) {
    Pending running = submit(request(prompts()[0], "r", 24));
    apply(fixture_route("r", {{"mode", "hold"}, {"log", log}, {"depth", 1 + i % 2}}));
    EXPECT_EQ(running.wait().tokens, whole.tokens);
  };
  for (int i = 0; i < 4; ++i) change(i);
  expect_all_retired();
  const size_t modules = mapped_modules();
  EXPECT_GT(modules, 0u);
  const uint64_t before = resident_bytes();
  for (int i = 0; i < kChanges; ++i) change(i);
  expect_all_retired();
  EXPECT_TRUE(eventually([&] { return count_lines(log, "destroy") == 4 + kChanges; }));
  if (!kKeepsFreedMemory) {
    EXPECT_LT(resident_bytes(), before + kChanges * kHeldBytes / 8);
  }
  EXPECT_EQ(mapped_modules(), modules);
  EXPECT_EQ(count_lines(log, "create"), 1 + 4 + kChanges);
  EXPECT_EQ(count_lines(log, "deactivate"), 4 + kChanges);
  EXPECT_EQ(count_lines(log, "begin"), count_lines(log, "end")) << "of sequences";
  audit();
  engine_.reset();
  EXPECT_EQ(count_lines(log, "destroy"), 1 + 4 + kChanges);
}

TEST_F(Routes, a_new_bundle_serves_without_a_restart_and_changed_bytes_are_a_new_version) {
  start(with_tree());
  EXPECT_EQ(plugin_report("org.example.fixture").id, "");
  const std::string old_bytes = read_bytes(fixture("good"));
  const std::string new_bytes = read_bytes(fixture("newer"));
  tree_.add("a", old_bytes);
  EXPECT_EQ(apply(fixture_route("r")).generation, 2u);
  EXPECT_EQ(plugin_report("org.example.fixture").state, PluginState::kLoaded);
  EXPECT_EQ(plugin_report("org.example.fixture").version, "1.0.0");
  EXPECT_EQ(report("r").drafter.sha256, to_hex(sha256(old_bytes)));
  const Outcome whole = run(request(prompts()[1], "off", 400));

  Pending running = submit_slow(request(prompts()[1], "r", 400));
  running.wait_for_tokens(2);
  tree_.add("a", new_bytes, BundleTree::manifest(new_bytes, "2.0.0"));
  const RouteChange change = apply(fixture_route("r"));
  EXPECT_FALSE(change.unchanged) << "the same words, other bytes";
  EXPECT_EQ(report("r").drafter.sha256, to_hex(sha256(new_bytes)));
  ASSERT_EQ(draining().size(), 1u);
  EXPECT_EQ(draining()[0].drafter.sha256, to_hex(sha256(old_bytes)));
  running.slow(false);
  EXPECT_EQ(plugin_report("org.example.fixture").version, "2.0.0");
  EXPECT_EQ(plugin_report("org.example.fixture").state, PluginState::kLoaded);
  EXPECT_EQ(running.wait().tokens, whole.tokens);
  EXPECT_EQ(run(request(prompts()[1], "r", 400)).tokens, whole.tokens);

  // Gone from the directory: no new route gets it, the live one goes on.
  std::filesystem::remove_all(tree_.bundle("a"));
  EXPECT_NE(refused(fixture_route("r", {{"depth", 3}})).text().find("is not there"),
            std::string::npos);
  EXPECT_EQ(plugin_report("org.example.fixture").id, "");
  EXPECT_EQ(run(request(prompts()[1], "r", 400)).tokens, whole.tokens);
  // The first version again: its code is there, and init() must not run twice.
  tree_.add("b", old_bytes);
  apply(fixture_route("r"));
  EXPECT_EQ(report("r").drafter.sha256, to_hex(sha256(old_bytes)));
  EXPECT_EQ(run(request(prompts()[1], "r", 400)).tokens, whole.tokens);
  expect_all_retired();
}

TEST_F(Routes, a_drafter_is_made_of_drafters_by_configuration_alone) {
  const std::string old_bytes = read_bytes(fixture("good"));
  const std::string new_bytes = read_bytes(fixture("newer"));
  tree_.add("a", old_bytes);
  start(with_tree());
  plain(40);
  const auto made_of = [](Json parts) {
    return route("r", plugin("specd.drafter.cascade", {{"drafters", std::move(parts)}}), 6);
  };
  const Json lookup_part = {{"plugin", "specd.drafter.prompt_lookup"},
                            {"config", {{"num_speculative_tokens", 4}, {"prompt_lookup_min", 2}}}};
  const Json replay_part = {{"plugin", "specd.drafter.replay"},
                            {"factory", "replay"},
                            {"config", {{"file", record_}, {"draft_tokens", 6}}}};
  const RouteOptions both = made_of({lookup_part, replay_part});
  apply(both);
  std::vector<Request> all;
  for (const std::string& prompt : prompts()) all.push_back(request(prompt, "r", 40));
  const std::vector<Outcome> outcomes = run_all(all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(outcomes[i].tokens, plain_[i].tokens);
  EXPECT_GT(report("r").counts.accepted, 0u);
  EXPECT_GT(report("r").counts.rejected, 0u) << "the replay alone is always right";
  EXPECT_EQ(report("r").counts.cut, 0u) << report("r").last_problem;
  EXPECT_TRUE(apply(both).unchanged);

  // A part's bundle counts as the route's own does.
  const RouteOptions with_fixture = made_of({lookup_part, {{"plugin", "org.example.fixture"}}});
  apply(with_fixture);
  EXPECT_TRUE(apply(with_fixture).unchanged);
  tree_.add("a", new_bytes, BundleTree::manifest(new_bytes, "2.0.0"));
  EXPECT_FALSE(apply(with_fixture).unchanged);
  apply(made_of({{{"plugin", "specd.drafter.cascade"},
                  {"config", {{"drafters", {lookup_part, replay_part}}}}},
                 lookup_part}));
  EXPECT_EQ(run(request(prompts()[1], "r", 40)).tokens, plain_[1].tokens);

  const auto expect_refused = [&](Json parts, const std::string& words) {
    const Status status = refused(made_of(std::move(parts)));
    EXPECT_NE(status.text().find(words), std::string::npos) << status.text();
  };
  expect_refused({lookup_part}, "drafters");
  expect_refused({lookup_part, {{"plugin", "org.example.absent"}}},
                 "drafters.1.plugin: plugin 'specd.drafter.cascade' factory 'cascade': describe() "
                 "returned SPECD_E_CONFIG (6): plugin 'org.example.absent' is not there");
  expect_refused(
      {lookup_part, {{"plugin", "specd.verifier.match"}}},
      "drafters.1.plugin: plugin 'specd.drafter.cascade' factory 'cascade': describe() "
      "returned SPECD_E_CONFIG (6): plugin 'specd.verifier.match' has no drafter factory");
  expect_refused(
      {{{"plugin", "specd.drafter.replay"}, {"config", {{"draft_tokens", -1}}}}, lookup_part},
      "drafters.0.config.draft_tokens: plugin 'specd.drafter.cascade' factory 'cascade': describe() "
      "returned SPECD_E_CONFIG (6): plugin 'specd.drafter.replay' factory 'replay': expected at "
      "least 1, found -1");
  expect_refused(
      {lookup_part, {{"plugin", "specd.drafter.draft_target"}, {"config", {{"model", "absent"}}}}},
      "drafters.1: ");
  EXPECT_EQ(run(request(prompts()[1], "r", 40)).tokens, plain_[1].tokens) << "the route goes on";
  expect_all_retired();
}

TEST_F(Routes, the_very_same_route_again_changes_nothing_and_says_so) {
  tree_.add("a", read_bytes(fixture("good")));
  const std::string log = folder_ + "/life";
  start(with_tree({lookup("r"), fixture_route("f", {{"log", log}})}));
  for (const RouteOptions& wanted : {lookup("r"), fixture_route("f", {{"log", log}})}) {
    for (int i = 0; i < 2; ++i) {
      const RouteChange change = apply(wanted);
      EXPECT_TRUE(change.unchanged) << wanted.name;
      EXPECT_EQ(change.generation, 1u);
    }
    const auto now = engine_->route(wanted.name);
    ASSERT_TRUE(now.ok());
    EXPECT_TRUE(apply(now.value()).unchanged) << "what route() gives is what is live";
  }
  EXPECT_EQ(count_lines(log, "create"), 1);
  // Every field counts.
  const auto changed = [&](auto&& edit) {
    RouteOptions wanted = engine_->route("r").value();
    edit(wanted);
    EXPECT_FALSE(apply(wanted).unchanged);
  };
  changed([](RouteOptions& r) { r.draft_nodes_max = 3; });
  changed([](RouteOptions& r) { r.guarantee = Guarantee::kLaw; });
  changed([](RouteOptions& r) { r.drafter.config["num_speculative_tokens"] = 2; });
  changed([](RouteOptions& r) { r.drafter.factory = "ngram"; });
  changed([](RouteOptions& r) { r.verifier.factory = "match"; });
}

TEST_F(Routes, a_request_id_that_comes_again_gets_the_first_reply) {
  start(with_tree({lookup("other")}));
  const RouteChange first = apply(lookup("r", 4), "change-1");
  EXPECT_EQ(first.generation, 2u);
  EXPECT_EQ(apply(lookup("r", 5), "change-2").generation, 3u);
  // A repetition that comes late must not bring the old route back.
  EXPECT_EQ(apply(lookup("r", 4), "change-1").generation, 2u);
  EXPECT_EQ(report("r").draft_nodes_max, 5);
  EXPECT_EQ(report("r").generation, 3u);
  const auto other = engine_->apply_route(lookup("r", 6), {.request_id = "change-1"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kInvalidArgument);
  EXPECT_NE(other.status().text().find("'change-1'"), std::string::npos);
  EXPECT_FALSE(engine_->delete_route("r", {.request_id = "change-1"}).ok());
  // Refusals are replies too.
  EXPECT_EQ(engine_->apply_route(lookup("off"), {.request_id = "change-3"}).status().to_string(),
            engine_->apply_route(lookup("off"), {.request_id = "change-3"}).status().to_string());
  EXPECT_FALSE(engine_->apply_route(lookup("r", 7), {.request_id = "change-3"}).ok());
  const auto deleted = engine_->delete_route("other", {.request_id = "change-4"});
  ASSERT_TRUE(deleted.ok());
  EXPECT_EQ(engine_->delete_route("other", {.request_id = "change-4"}).value().generation,
            deleted.value().generation);
  EXPECT_EQ(engine_->delete_route("other").status().code(), Code::kNotFound);
  // The last 256 are remembered.
  for (int i = 0; i < 256; ++i)
    EXPECT_FALSE(engine_->delete_route("off", {.request_id = "n" + std::to_string(i)}).ok());
  EXPECT_TRUE(engine_->apply_route(lookup("r", 6), {.request_id = "change-1"}).ok())
      << "forgotten by now";
  EXPECT_EQ(report("r").draft_nodes_max, 6);
  EXPECT_FALSE(engine_->apply_route(lookup("r", 6), {.request_id = std::string(129, 'x')}).ok());
}

TEST_F(Routes, changes_from_many_threads_go_one_after_another) {
  start(with_tree({lookup("r")}));
  const Outcome whole = run(request(prompts()[4], "off", 32));
  constexpr int kThreads = 6, kEach = 8;
  std::atomic<int> failed{0}, wrong{0};
  std::mutex mutex;
  std::set<uint64_t> generations;
  std::vector<std::thread> operators;
  for (int t = 0; t < kThreads; ++t) {
    operators.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        // All of one name, each another route.
        const auto change = engine_->apply_route(
            route("r",
                  plugin("specd.drafter.prompt_lookup", {{"num_speculative_tokens", 4},
                                                         {"prompt_lookup_min", 1},
                                                         {"prompt_lookup_max", 2 + t * kEach + i}}),
                  4),
            {.request_id = "t" + std::to_string(t) + "-" + std::to_string(i)});
        if (!change.ok() || change.value().unchanged) {
          ++failed;
          continue;
        }
        {
          const std::lock_guard lock(mutex);
          generations.insert(change.value().generation);
        }
        if (run(request(prompts()[4], "r", 32)).tokens != whole.tokens) ++wrong;
      }
    });
  }
  for (std::thread& each : operators) each.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong, 0);
  ASSERT_EQ(generations.size(), size_t{kThreads * kEach});
  EXPECT_EQ(*generations.begin(), 2u);
  EXPECT_EQ(*generations.rbegin(), 1u + kThreads * kEach);
  EXPECT_EQ(report("r").generation, *generations.rbegin());
  EXPECT_EQ(report("r").counts.requests, uint64_t{kThreads * kEach});
  expect_all_retired();
}

TEST_F(Routes, the_pair_is_made_beside_the_step_and_flipped_when_it_ends) {
  tree_.add("a", read_bytes(fixture("good")));
  const std::string log = folder_ + "/life";
  start(with_tree({lookup("r")}));
  Pending held;
  held.hold_at(1);
  ASSERT_TRUE(engine_->submit(request(prompts()[0], "r", 8), held.sink()).ok());
  held.wait_for_tokens(1);
  std::atomic<bool> applied{false};
  std::thread op([&] {
    apply(fixture_route("r", {{"log", log}}));
    applied = true;
  });
  EXPECT_TRUE(eventually([&] { return count_lines(log, "activate") == 1; })) << "while a step runs";
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(applied) << "no step has ended";
  EXPECT_EQ(report("r").generation, 1u);
  // Clients do not wait for either.
  Pending queued = submit(request(prompts()[0], "r", 8));
  EXPECT_EQ(report("r").in_use, 2);
  held.let_go();
  op.join();
  EXPECT_EQ(report("r").generation, 2u);
  EXPECT_EQ(held.wait().tokens, queued.wait().tokens);
  EXPECT_EQ(report("r").counts.requests, 0u) << "both had the old pair";
  expect_all_retired();
}

TEST_F(Routes, a_deleted_route_drains_and_what_must_stay_is_not_deleted) {
  constexpr int32_t kTokens = 300;
  EngineOptions o = with_tree({lookup("r"), lookup("standard")});
  o.routes.push_back(fixture_route("broken"));  // its plugin is not there
  o.default_route = "standard";
  start(o);
  const Outcome whole = run(request(prompts()[3], "off", kTokens));
  const auto refused_delete = [&](const char* name, Code code, const char* word) {
    const auto change = engine_->delete_route(name);
    ASSERT_FALSE(change.ok()) << name;
    EXPECT_EQ(change.status().code(), code);
    EXPECT_NE(change.status().text().find(word), std::string::npos) << change.status().to_string();
  };
  refused_delete("off", Code::kFailedPrecondition, "always there");
  refused_delete("standard", Code::kFailedPrecondition, "default route");
  refused_delete("nobody", Code::kNotFound, "there are off, broken, r, standard");
  Pending running = submit_slow(request(prompts()[3], "r", kTokens));
  running.wait_for_tokens(2);
  EXPECT_TRUE(engine_->delete_route("r").ok());
  refused_delete("r", Code::kNotFound, "'r'");
  ASSERT_EQ(draining().size(), 1u);
  EXPECT_EQ(draining()[0].in_use, 1);
  const auto late = engine_->submit(request("x", "r", 4), [](const Event&) {});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(late.status().text().starts_with("route: ")) << late.status().to_string();
  // The name may be used again while the old one drains.
  EXPECT_FALSE(apply(lookup("r", 2)).unchanged);
  running.slow(false);
  EXPECT_EQ(run(request(prompts()[3], "r", kTokens)).tokens, whole.tokens);
  EXPECT_EQ(running.wait().tokens, whole.tokens);
  expect_all_retired();
  EXPECT_EQ(report("broken").state, RouteState::kRefused);
  EXPECT_TRUE(engine_->delete_route("broken").ok());
  // The default route can be replaced, not lost.
  EXPECT_FALSE(apply(lookup("standard", 3)).unchanged);
  EXPECT_TRUE(report("standard").is_default);
  EXPECT_EQ(run(request(prompts()[3], "", kTokens)).tokens, whole.tokens);
}

TEST_F(Routes, a_route_larger_than_any_at_the_start_changes_no_token) {
  constexpr int32_t kTokens = 64;
  EngineOptions o = with_tree();  // rows of logits for 8 nodes a sequence
  o.max_sequences = 4;
  start(o);
  plain(kTokens);
  apply(route("r", plugin("specd.drafter.replay", {{"file", record_}, {"draft_tokens", 40}}), 40));
  EXPECT_EQ(report("r").draft_nodes_max, 40);
  std::vector<Request> all;
  for (const std::string& prompt : prompts()) all.push_back(request(prompt, "r", kTokens));
  const std::vector<Outcome> outcomes = run_all(all);
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].tokens, plain_[i].tokens) << i;
  // Alone, a sequence gets what the rows of logits allow: more than 8 nodes.
  EXPECT_LT(run(all[0]).usage.steps, 1 + (kTokens - 1 + 8) / 9);
}

TEST_F(Routes, a_refused_route_is_repaired_by_applying_it_again) {
  RouteOptions small = fixture_route("r");
  small.disable_by_batch_size = 1;
  start(with_tree({small}));
  EXPECT_EQ(report("r").state, RouteState::kRefused);
  Pending one = submit_slow(request(prompts()[0], "off", 200));
  Pending other = submit_slow(request(prompts()[1], "off", 200));
  one.wait_for_tokens(1);
  other.wait_for_tokens(1);
  EXPECT_FALSE(report("r").suspended) << "a route that is not served";
  one.slow(false);
  other.slow(false);
  one.wait();
  other.wait();
  EXPECT_EQ(engine_->route("r").value().drafter.plugin, "org.example.fixture");
  tree_.add("a", read_bytes(fixture("good")));
  EXPECT_FALSE(apply(fixture_route("r")).unchanged);
  EXPECT_EQ(report("r").state, RouteState::kLive);
  EXPECT_TRUE(report("r").refused.ok());
  EXPECT_EQ(run(request(prompts()[0], "r", 8)).tokens.size(), 8u);
}

// The drafter hashes every hidden state it sees; a line per sequence, the same for the same text.
TEST_F(Routes, taps_of_a_new_route_join_those_of_the_old_ones) {
  constexpr int32_t kTokens = 48;
  const auto taps = [&](const std::string& name, int32_t second, const std::string& file) {
    return route(
        name,
        plugin("specd.test.drafter_taps", {{"file", folder_ + "/" + file}, {"second_tap", second}}),
        2);
  };
  const auto lines = [&](const std::string& file) {
    std::vector<std::string> all;
    std::ifstream in(folder_ + "/" + file);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto run_on = [&](const std::string& name) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) all.push_back(request(prompt, name, kTokens));
    run_all(all);
  };
  // What each sees when it is there from the start, alone.
  for (const int32_t second : {0, 1, 2}) {
    start(with_tree({taps("t", second, "alone" + std::to_string(second))}));
    run_on("t");
    audit();
  }
  EXPECT_NE(lines("alone0"), lines("alone1")) << "other taps must hash otherwise";
  EXPECT_NE(lines("alone1"), lines("alone2"));
  ASSERT_EQ(lines("alone0").size(), prompts().size());
  // Taps arrive one after the other while the earlier ones are in use.
  start(with_tree({lookup("plain")}));
  apply(taps("a", 1, "live1"));
  Pending long_one = submit(request(prompts()[7], "a", 400));
  apply(taps("b", 0, "live0"));
  run_on("b");
  run_on("a");
  apply(taps("c", 2, "live2"));
  run_on("c");
  long_one.wait();
  EXPECT_EQ(lines("live0"), lines("alone0"));
  EXPECT_EQ(lines("live2"), lines("alone2"));
  std::vector<std::string> of_a = lines("live1");
  ASSERT_EQ(of_a.size(), prompts().size() + 1);
  for (const std::string& line : lines("alone1")) {
    const auto found = std::find(of_a.begin(), of_a.end(), line);
    EXPECT_NE(found, of_a.end());
    if (found != of_a.end()) of_a.erase(found);
  }
  // A sequence that began before the new taps came went on without a gap: it has its line.
  EXPECT_EQ(of_a.size(), 1u);
}

TEST_F(Routes, an_engine_that_is_destroyed_while_routes_drain_ends_everything) {
  tree_.add("a", read_bytes(fixture("good")));
  const std::string log = folder_ + "/life";
  start(with_tree({fixture_route("r", {{"log", log}})}));
  std::vector<Pending> pending;
  for (int i = 0; i < 5; ++i) {
    pending.push_back(submit_slow(request(prompts()[0], "r", 1500)));
    apply(fixture_route("r", {{"log", log}, {"depth", 1 + i}}));
  }
  EXPECT_EQ(draining().size(), 5u);
  EXPECT_TRUE(engine_->delete_route("r").ok());
  engine_.reset();
  for (Pending& each : pending) EXPECT_EQ(each.wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(count_lines(log, "create"), 6);
  EXPECT_EQ(count_lines(log, "destroy"), 6);
}

TEST_F(Routes, a_draining_engine_refuses_changes) {
  start(with_tree({lookup("r")}));
  engine_->start_drain();
  EXPECT_EQ(refused(lookup("r", 2)).code(), Code::kUnavailable);
  EXPECT_EQ(engine_->delete_route("r").status().code(), Code::kUnavailable);
}

TEST_F(Routes, there_are_at_most_so_many) {
  start(with_tree());
  for (size_t i = 0; i < EngineLimits::kRoutes; ++i) apply(lookup("r" + std::to_string(i)));
  EXPECT_EQ(refused(lookup("more")).code(), Code::kExhausted);
  EXPECT_FALSE(apply(lookup("r7", 2)).unchanged) << "replacing one needs no room";
  EXPECT_TRUE(engine_->delete_route("r0").ok());
  apply(lookup("more"));
}

}  // namespace
}  // namespace specd
