#include "core/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "plugins/drafter_replay/coin.h"
#include "tests/core/engine_rig.h"

namespace specd {
namespace {

constexpr int32_t kTokens = 32;

TEST_F(EngineTest, greedy_text_equals_the_recorded_reference) {
  for (const char* model : {"pico-target", "pico-draft"}) {
    start(options(model));
    const Json recorded =
        parse_json_file(std::string(SPECD_TEST_ZOO) + "/reference/reference.json", 1 << 24).value();
    std::vector<Request> requests;
    for (const Json& prompt : recorded.at("prompts")) {
      Request r = request(prompt.at("text").get<std::string>(), "off", 64);
      requests.push_back(r);
      EXPECT_EQ(engine_->encode(r.prompt).value(),
                prompt.at("prompt_ids").get<std::vector<int32_t>>());
    }
    const std::vector<Outcome> outcomes = run_all(requests);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const Json& expected = recorded.at("prompts").at(i).at("models").at(model);
      EXPECT_EQ(outcomes[i].tokens, expected.at("greedy_ids").get<std::vector<int32_t>>());
      EXPECT_EQ(outcomes[i].text, expected.at("greedy_text").get<std::string>());
      EXPECT_EQ(outcomes[i].finish, FinishReason::kLength);
    }
    audit();
  }
}

// Plain decoding once, then every route against it.
class Identity : public EngineTest {
 protected:
  // Greedy and seeded requests of all prompts.
  static std::vector<Request> requests(const std::string& route_name) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) {
      all.push_back(request(prompt, route_name, kTokens));
      all.push_back(request(prompt, route_name, kTokens, 0.8f, 1234));
    }
    return all;
  }
  void plain(const EngineOptions& o) {
    start(o);
    plain_ = run_all(requests("off"));
    // Greedy and seeded texts of one prompt differ, so each kind has a record of its own.
    std::vector<Request> greedy, seeded;
    std::vector<Outcome> greedy_out, seeded_out;
    const std::vector<Request> all = requests("off");
    for (size_t i = 0; i < all.size(); ++i) {
      (i % 2 == 0 ? greedy : seeded).push_back(all[i]);
      (i % 2 == 0 ? greedy_out : seeded_out).push_back(plain_[i]);
    }
    greedy_file_ = record(greedy, greedy_out);
    seeded_file_ = record(seeded, seeded_out);
    audit();
  }
  void expect_identical(const std::vector<Outcome>& outcomes, const std::string& what) {
    EngineTest::expect_identical(outcomes, plain_, what);
  }
  static Json replay(const std::string& file, double acceptance, int32_t k, int32_t tree_nodes = 0,
                     int32_t probes = 0) {
    Json config{{"file", file}, {"acceptance", acceptance}, {"draft_tokens", k}, {"seed", 5}};
    if (tree_nodes > 0) config["tree"] = {{"nodes", tree_nodes}, {"probes", probes}};
    return config;
  }

  std::vector<Outcome> plain_;
  std::string greedy_file_, seeded_file_;
};

TEST_F(Identity, no_chain_of_any_length_or_acceptance_changes_a_token) {
  plain(options());
  EngineOptions o = options();
  for (const int32_t k : {1, 3, 8}) {
    for (const int percent : {0, 50, 100}) {
      const std::string name = "k" + std::to_string(k) + "a" + std::to_string(percent);
      o.routes.push_back(route(
          "g" + name, plugin("specd.drafter.replay", replay(greedy_file_, percent / 100.0, k)), k));
      o.routes.push_back(route(
          "s" + name, plugin("specd.drafter.replay", replay(seeded_file_, percent / 100.0, k)), k));
    }
  }
  start(o);
  for (const RouteOptions& each : o.routes) {
    expect_identical(run_all(requests(each.name)), each.name);
    const RouteReport r = report(each.name);
    EXPECT_GT(r.counts.drafted, 0u) << each.name;
    EXPECT_EQ(r.counts.cut, 0u) << each.name;
    if (each.name.ends_with("a0")) {
      EXPECT_EQ(r.counts.accepted, 0u) << each.name;
    }
  }
  EXPECT_EQ(engine_->status().kv_moves, 0u) << "a chain lies where it belongs";
}

TEST_F(Identity, trees_with_decoys_and_probes_change_no_token) {
  plain(options());
  EngineOptions o = options();
  for (const int percent : {0, 40, 100}) {
    for (const int32_t k : {2, 6}) {
      const std::string name = "k" + std::to_string(k) + "a" + std::to_string(percent);
      o.routes.push_back(
          route("g" + name,
                plugin("specd.drafter.replay", replay(greedy_file_, percent / 100.0, k, 4 * k, k)),
                4 * k));
      o.routes.push_back(
          route("s" + name,
                plugin("specd.drafter.replay", replay(seeded_file_, percent / 100.0, k, 4 * k, k)),
                4 * k));
    }
  }
  start(o);
  for (const RouteOptions& each : o.routes) {
    const uint64_t moves_before = engine_->status().kv_moves;
    expect_identical(run_all(requests(each.name)), each.name);
    const RouteReport r = report(each.name);
    EXPECT_EQ(r.counts.cut, 0u) << each.name;
    EXPECT_GT(r.counts.discarded, 0u) << each.name << ": probes were there";
    if (each.name.ends_with("a100")) {
      EXPECT_GT(engine_->status().kv_moves, moves_before) << "accepted branches must move";
    }
    if (each.name.ends_with("a0")) {
      EXPECT_EQ(r.counts.accepted, 0u) << each.name;
    }
  }
}

// The replay drafter tells the truth at a position or not by a coin that this test can throw too,
// so the accepted count is known exactly; over many seeds its share is the acceptance that was set.
TEST_F(Identity, acceptance_reported_is_the_one_set) {
  plain(options());
  constexpr int kSeeds = 6;
  EngineOptions o = options();
  for (const int percent : {0, 25, 75, 100}) {
    for (int seed = 0; seed < kSeeds; ++seed) {
      for (const int32_t k : {1, 4}) {
        Json config = replay(greedy_file_, percent / 100.0, k);
        config["seed"] = seed;
        o.routes.push_back(route(
            "a" + std::to_string(percent) + "s" + std::to_string(seed) + "k" + std::to_string(k),
            plugin("specd.drafter.replay", config), k));
      }
    }
  }
  start(o);
  const std::string prompt = prompts()[2];
  const auto n_prompt = static_cast<int64_t>(engine_->encode(prompt).value().size());
  std::map<double, std::pair<double, double>> of_one;  // acceptance -> accepted, drafted at k = 1
  for (const RouteOptions& each : o.routes) {
    const double acceptance = each.drafter.config.at("acceptance").get<double>();
    const auto seed = each.drafter.config.at("seed").get<uint64_t>();
    const int64_t k = each.draft_nodes_max;
    int64_t emitted = 1, drafted = 0, accepted = 0, steps = 1;  // the prompt's last row gives one
    while (emitted < kTokens) {
      const int64_t budget = std::min(k, kTokens - emitted - 1);
      int64_t run_length = 0;
      while (run_length < budget &&
             replay::tells_truth(seed, static_cast<uint64_t>(n_prompt + emitted + run_length),
                                 acceptance)) {
        ++run_length;
      }
      drafted += budget;
      accepted += run_length;
      emitted += run_length + 1;
      ++steps;
    }
    const Outcome outcome = run(request(prompt, each.name, kTokens));
    EXPECT_EQ(outcome.usage.draft_tokens, drafted) << each.name;
    EXPECT_EQ(outcome.usage.accepted_tokens, accepted) << each.name;
    EXPECT_EQ(outcome.usage.steps, steps) << each.name;
    EXPECT_EQ(outcome.tokens, plain_[4].tokens) << each.name;
    if (k != 1) continue;
    of_one[acceptance].first += static_cast<double>(accepted);
    of_one[acceptance].second += static_cast<double>(drafted);
  }
  for (const auto& [set, counts] : of_one) {
    const double deviation = std::sqrt(set * (1 - set) / counts.second);
    EXPECT_NEAR(counts.first / counts.second, set, 4 * deviation + 1e-12)
        << counts.second << " drafts";
  }
}

TEST_F(Identity, everything_accepted_takes_the_fewest_steps) {
  plain(options());
  EngineOptions o = options();
  o.routes.push_back(
      route("full", plugin("specd.drafter.replay", replay(greedy_file_, 1.0, 7)), 7));
  start(o);
  const Outcome outcome = run(request(prompts()[0], "full", kTokens));
  // One token from the prompt's last row, then eight a step.
  EXPECT_EQ(outcome.usage.steps, 1 + (kTokens - 1 + 7) / 8);
  EXPECT_EQ(outcome.usage.accepted_tokens, outcome.usage.draft_tokens);
  EXPECT_EQ(outcome.tokens, plain_[0].tokens);
}

TEST_F(Identity, prompt_lookup_changes_no_token) {
  plain(options());
  EngineOptions o = options();
  o.routes.push_back(route(
      "vllm",
      plugin("specd.drafter.prompt_lookup",
             {{"num_speculative_tokens", 8}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 4}}),
      8));
  o.routes.push_back(route(
      "pool",
      plugin("specd.drafter.prompt_lookup", {{"max_draft_len", 6}, {"max_matching_ngram_size", 3}}),
      6));
  start(o);
  for (const char* name : {"vllm", "pool"}) {
    expect_identical(run_all(requests(name)), name);
    EXPECT_GT(report(name).counts.accepted, 0u) << name;
    EXPECT_EQ(report(name).counts.cut, 0u) << name;
  }
}

TEST_F(Identity, suffix_decoding_changes_no_token) {
  plain(options());
  EngineOptions o = options();
  o.routes.push_back(route("chain", plugin("specd.drafter.suffix", {{"max_spec_factor", 2}}), 8));
  o.routes.push_back(
      route("branches",
            plugin("specd.drafter.suffix", {{"max_branches", 3}, {"max_spec_factor", 2}}), 12));
  start(o);
  for (const char* name : {"chain", "branches"}) {
    expect_identical(run_all(requests(name)), name);
    EXPECT_GT(report(name).counts.accepted, 0u) << name;
    EXPECT_EQ(report(name).counts.cut, 0u) << name;
  }
}

TEST_F(Identity, different_routes_in_one_batch_change_no_token) {
  plain(options("pico-target"));
  EngineOptions o = options("pico-target");
  o.routes.push_back(route(
      "lookup",
      plugin("specd.drafter.prompt_lookup",
             {{"num_speculative_tokens", 4}, {"prompt_lookup_min", 2}, {"prompt_lookup_max", 4}}),
      4));
  o.routes.push_back(
      route("tree", plugin("specd.drafter.replay", replay(greedy_file_, 0.6, 4, 16, 4)), 16));
  o.routes.push_back(
      route("chain", plugin("specd.drafter.replay", replay(seeded_file_, 0.6, 3)), 3));
  start(o);
  std::vector<Request> mixed = requests("off");
  const char* names[] = {"lookup", "tree", "off", "chain", "tree", "lookup", "chain"};
  for (size_t i = 0; i < mixed.size(); ++i) mixed[i].route = names[i % 7];
  expect_identical(run_all(mixed), "mixed");
}

TEST_F(Identity, neither_chunks_nor_threads_nor_neighbours_nor_page_order_change_a_token) {
  plain(options());
  for (const int32_t step_tokens : {16, 40}) {
    for (const int32_t threads : {1, 3}) {
      EngineOptions o = options();
      o.step_tokens_max = step_tokens;
      o.max_sequences = step_tokens / 5;
      o.threads = threads;
      o.routes.push_back(route("lookup",
                               plugin("specd.drafter.prompt_lookup", {{"num_speculative_tokens", 5},
                                                                      {"prompt_lookup_min", 1},
                                                                      {"prompt_lookup_max", 3}}),
                               5));
      start(o);
      expect_identical(run_all(requests("off")), "chunks of " + std::to_string(step_tokens));
      // Pages were given back in another order than taken: the second round lies scattered.
      expect_identical(run_all(requests("lookup")),
                       "lookup, chunks of " + std::to_string(step_tokens));
      audit();
    }
  }
  EngineOptions one = options();
  one.max_sequences = 1;
  start(one);
  expect_identical(run_all(requests("off")), "one at a time");
}

TEST_F(Identity, holds_in_every_cache_type) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kBF16}) {
    EngineOptions o = options();
    o.model.kv_dtype = dtype;
    plain(o);
    o.routes.push_back(
        route("tree", plugin("specd.drafter.replay", replay(seeded_file_, 0.7, 4, 16, 4)), 16));
    start(o);
    expect_identical(run_all(requests("tree")), "tree");
    audit();
  }
}

// Every way in which a drafter can lie; see tests/plugins/bad.
TEST_F(Identity, no_misbehaving_drafter_changes_a_token) {
  plain(options());
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  const auto bad = [](const char* factory, const char* mode) {
    return PluginUse{
        .plugin = "specd.test.drafter_bad", .factory = factory, .config = {{"mode", mode}}};
  };
  for (const char* mode :
       {"token_negative", "token_vocab", "token_min", "count_huge", "count_over", "count_negative",
        "status_unknown", "status_error", "status_deadline", "status_one", "status_one_unknown",
        "begin_fails", "update_fails", "garbage", "wrong", "rounding"}) {
    o.routes.push_back(route(mode, bad("bad", mode), 8));
  }
  for (const char* mode : {"parent_forward", "parent_self", "parent_negative", "flags_garbage",
                           "deep_chain", "garbage"}) {
    o.routes.push_back(route(std::string("tree_") + mode, bad("bad_tree", mode), 8));
  }
  const std::set<std::string> uncut{"wrong", "rounding", "begin_fails", "update_fails",
                                    "status_deadline"};
  start(o);
  for (const RouteOptions& each : o.routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    expect_identical(run_all(requests(each.name)), each.name);
    const RouteReport r = report(each.name);
    volatile float subnormal = 1e-40f;
    EXPECT_NE(subnormal * 1.0f, 0.0f) << "a plugin's flush-to-zero has leaked";
    if (uncut.contains(each.name)) {
      EXPECT_EQ(r.counts.cut, 0u) << each.name;
    } else {
      EXPECT_GT(r.counts.cut, 0u) << each.name;
      EXPECT_NE(r.last_problem, "") << each.name;
    }
  }
}

// Its branches are four levels deep, so the last ones lie beyond the last position of the context.
TEST_F(Identity, a_tree_at_the_end_of_the_context_changes_no_token) {
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  o.routes = {route(
      "tree",
      {.plugin = "specd.test.drafter_bad", .factory = "bad_tree", .config = {{"mode", "wrong"}}},
      8)};
  start(o);
  const int32_t n_positions = engine_->model().max_positions;
  Request last = request("", "off", 6);
  last.prompt_tokens.emplace();
  for (int32_t i = 0; i < n_positions - last.max_tokens; ++i)
    last.prompt_tokens->push_back(5 + i % 90);
  const Outcome plain = run(last);
  ASSERT_TRUE(plain.error.ok()) << plain.error.to_string();
  last.route = "tree";
  const Outcome drafted = run(last);
  EXPECT_TRUE(drafted.error.ok()) << drafted.error.to_string();
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_GT(report("tree").counts.drafted, 0u);
}

TEST_F(Identity, an_unusable_verdict_accepts_nothing_and_loses_nothing) {
  plain(options());
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  for (const char* mode : {"path_out_of_range", "path_not_root", "path_broken", "path_repeats",
                           "path_probe", "next_negative", "next_vocab", "count_huge", "count_over",
                           "count_negative", "status_error", "status_unknown"}) {
    o.routes.push_back(route(mode,
                             plugin("specd.drafter.replay", replay(greedy_file_, 1.0, 3, 12, 3)),
                             12, plugin("specd.test.verifier_bad", {{"mode", mode}})));
  }
  start(o);
  for (const RouteOptions& each : o.routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    expect_identical(run_all(requests(each.name)), each.name);
    EXPECT_GT(report(each.name).counts.cut, 0u) << each.name;
  }
  const std::string problem = report("next_negative").last_problem;
  EXPECT_NE(problem.find("next_token -1; the tree has"), std::string::npos) << problem;
}

// One line a sequence: rows, hash of what the drafter saw, probes right, probes wrong.
TEST_F(Identity, hidden_states_reach_the_drafter_complete_and_the_same_in_any_batch_and_cascade) {
  plain(options());
  std::vector<std::string> first;
  for (const char* how : {"alone", "in small steps", "first of a cascade", "last of a cascade"}) {
    const std::string what = how;
    EngineOptions o = options();
    o.step_tokens_max = what == "in small steps" ? 24 : 512;
    o.max_sequences = what == "in small steps" ? 3 : 16;
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    const std::string file = folder_ + "/taps " + what;
    PluginUse drafter = plugin("specd.test.drafter_taps", {{"file", file}});
    // Beside others, one of which sees other layers.
    Json parts = {{{"plugin", "specd.drafter.suffix"}},
                  {{"plugin", "specd.test.drafter_taps"},
                   {"config", {{"file", folder_ + "/other " + what}, {"second_tap", 2}}}}};
    const Json part = {{"plugin", drafter.plugin}, {"config", {{"file", file}}}};
    if (what == "first of a cascade") parts.insert(parts.begin(), part);
    if (what == "last of a cascade") parts.push_back(part);
    if (parts.size() == 3) drafter = plugin("specd.drafter.cascade", {{"drafters", parts}});
    o.routes.push_back(route("taps", drafter, 2));
    start(o);
    ASSERT_EQ(report("taps").state, RouteState::kLive) << report("taps").refused.to_string();
    expect_identical(run_all(requests("taps")), "taps");
    EXPECT_EQ(report("taps").counts.lost, 0u) << "a gap, or a state that is not finite, " << what;
    audit();
    engine_.reset();
    std::vector<std::string> lines;
    int right = 0, wrong = 0;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      int rows = 0, r = 0, w = 0;
      uint64_t hash = 0;
      std::istringstream(line) >> rows >> hash >> r >> w;
      // How often it drafts, and so the probes, may depend on the neighbours.
      lines.push_back(std::to_string(rows) + " " + std::to_string(hash));
      EXPECT_GT(rows, kTokens - 2) << "the prompt's rows come too, " << what;
      right += r;
      wrong += w;
    }
    std::sort(lines.begin(), lines.end());
    ASSERT_EQ(lines.size(), plain_.size()) << "a sequence was lost " << what;
    // How many of the last rows come depends on what was accepted at the end.
    if (what == "last of a cascade") continue;
    EXPECT_GT(right, 20) << "greedy requests follow the most likely token";
    EXPECT_LT(wrong, right) << "only sampled ones may differ";
    if (first.empty()) first = lines;
    EXPECT_EQ(lines, first) << what;
  }
}

TEST_F(EngineTest, sampling_follows_the_seed_and_the_parameters) {
  start(options());
  Request r = request(prompts()[1], "off", kTokens, 1.0f, 7);
  const Outcome first = run(r);
  EXPECT_EQ(run(r).tokens, first.tokens);
  r.sampling.seed = 8;
  EXPECT_NE(run(r).tokens, first.tokens);
  // top_k 1 is greedy whatever the temperature.
  r.sampling.top_k = 1;
  const Outcome narrow = run(r);
  EXPECT_EQ(narrow.tokens, run(request(prompts()[1], "off", kTokens)).tokens);
}

TEST_F(EngineTest, stop_strings_and_ids_end_the_text_in_the_same_place_with_and_without_drafts) {
  EngineOptions o = options();
  start(o);
  const Outcome whole = run(request(prompts()[5], "off", kTokens));
  const std::string file = record({request(prompts()[5], "off", kTokens)}, {whole});
  ASSERT_GT(whole.text.size(), 12u);
  const std::string stop = whole.text.substr(7, 3);
  const int32_t stop_id = whole.tokens[9];
  o.routes.push_back(route(
      "replay", plugin("specd.drafter.replay", Json{{"file", file}, {"draft_tokens", 8}}), 8));
  start(o);
  for (const char* name : {"off", "replay"}) {
    Request r = request(prompts()[5], name, kTokens);
    r.stop = {stop};
    Outcome outcome = run(r);
    EXPECT_EQ(outcome.finish, FinishReason::kStop);
    EXPECT_EQ(outcome.text, whole.text.substr(0, whole.text.find(stop)));
    r.stop.clear();
    r.stop_tokens = {stop_id};
    outcome = run(r);
    EXPECT_EQ(outcome.finish, FinishReason::kStop);
    ASSERT_FALSE(outcome.tokens.empty());
    EXPECT_EQ(outcome.tokens.back(), stop_id);
    EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), whole.tokens.begin()));
    EXPECT_EQ(outcome.usage.draft_tokens, outcome.usage.accepted_tokens +
                                              outcome.usage.rejected_tokens +
                                              outcome.usage.discarded_tokens);
  }
}

TEST_F(EngineTest, a_request_out_of_range_is_refused_naming_the_field) {
  start(options());
  const Request good = request("x = 1\n", "off", 4);
  const auto refused = [&](const char* field, auto&& change) {
    Request r = good;
    change(r);
    const auto id =
        engine_->submit(r, [](const Event&) { FAIL() << "the sink of a refused request"; });
    ASSERT_FALSE(id.ok()) << field;
    EXPECT_EQ(id.status().code(), Code::kInvalidArgument) << id.status().to_string();
    EXPECT_EQ(id.status().field(), field) << id.status().to_string();
  };
  refused("sampling.temperature", [](Request& r) { r.sampling.temperature = -1; });
  refused("sampling.temperature", [](Request& r) { r.sampling.temperature = NAN; });
  refused("sampling.temperature", [](Request& r) { r.sampling.temperature = 1e-4f; });
  refused("sampling.temperature", [](Request& r) { r.sampling.temperature = INFINITY; });
  refused("sampling.top_p", [](Request& r) { r.sampling.top_p = 0; });
  refused("sampling.top_p", [](Request& r) { r.sampling.top_p = 1.5f; });
  refused("sampling.top_p", [](Request& r) { r.sampling.top_p = NAN; });
  refused("sampling.top_k", [](Request& r) { r.sampling.top_k = -1; });
  refused("max_tokens", [](Request& r) { r.max_tokens = 0; });
  refused("max_tokens", [](Request& r) { r.max_tokens = INT32_MIN; });
  refused("max_tokens", [](Request& r) { r.max_tokens = 2048; });
  refused("max_tokens", [](Request& r) { r.max_tokens = INT32_MAX; });
  refused("stop[0]", [](Request& r) { r.stop = {""}; });
  refused("stop", [](Request& r) { r.stop.assign(17, "a"); });
  refused("stop[1]", [](Request& r) { r.stop = {"a", "\xFF"}; });
  refused("stop_tokens[1]", [](Request& r) { r.stop_tokens = {3, 4096}; });
  refused("route", [](Request& r) { r.route = "nowhere"; });
  refused("prompt", [](Request& r) { r.prompt = "a\xC3("; });
  refused("prompt", [](Request& r) { r.prompt_tokens = std::vector<int32_t>{1}; });
  refused("prompt", [](Request& r) { r.chat.emplace(); });
  refused("prompt_tokens[0]", [](Request& r) {
    r.prompt.clear();
    r.prompt_tokens = std::vector<int32_t>{-1};
  });
  refused("prompt", [](Request& r) {
    r.prompt.clear();
    r.prompt_tokens = std::vector<int32_t>{};
  });
  EXPECT_EQ(run(good).finish, FinishReason::kLength) << "neighbours are undisturbed";
}

TEST_F(EngineTest, a_prompt_of_nothing_but_bos_and_one_up_to_the_context_work) {
  start(options());
  EXPECT_EQ(run(request("", "off", 4)).tokens.size(), 4u);
  Request full = request("", "off", 8);
  full.prompt_tokens = std::vector<int32_t>(2048 - 8, 300);
  const Outcome outcome = run(full);
  EXPECT_EQ(outcome.tokens.size(), 8u);
  EXPECT_EQ(outcome.finish, FinishReason::kLength);
}

TEST_F(EngineTest, more_requests_than_pages_wait_and_complete) {
  EngineOptions o = options();
  o.model.kv_bytes_max =
      12ull * 2 * 16 * 1 * 64 * 4 * 2;  // 12 pages of 16 tokens, 1 kv head, 2 layers
  start(o);
  ASSERT_EQ(engine_->model().kv_pages_total, 12);
  std::vector<Request> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(request(prompts()[static_cast<size_t>(i) % 8], "off", 24));
  const std::vector<Outcome> outcomes = run_all(all);
  for (size_t i = 8; i < outcomes.size(); ++i)
    EXPECT_EQ(outcomes[i].tokens, outcomes[i - 8].tokens);
  const auto never = engine_->submit(request("x", "off", 1000), [](const Event&) {});
  ASSERT_FALSE(never.ok());
  EXPECT_NE(never.status().text().find("KV pages"), std::string::npos)
      << never.status().to_string();
}

TEST_F(EngineTest, prompt_that_fills_the_context_alone_is_what_is_refused) {
  start(options());
  const int32_t context = engine_->model().max_positions;
  Request full = request("", "off", 1);
  for (const int32_t n : {context - 1, context, context + 5}) {
    full.prompt_tokens = std::vector<int32_t>(static_cast<size_t>(n), 5);
    full.max_tokens = 2;
    const auto refused = engine_->submit(full, [](const Event&) {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().field(), n < context ? "max_tokens" : "prompt_tokens")
        << refused.status().to_string();
  }
}

TEST_F(EngineTest, pages_beyond_the_memory_are_refused_with_their_key) {
  EngineOptions o = options();
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = EngineLimits::kKvPages;
  const auto engine = Engine::create(o, {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().field(), "model.kv.pages") << engine.status().to_string();
  EXPECT_NE(engine.status().message().find("at most "), std::string::npos);
}

TEST_F(EngineTest, a_full_queue_refuses_and_the_accepted_complete) {
  EngineOptions o = options();
  o.max_sequences = 1;
  o.queue_max = 4;
  start(o);
  std::vector<Pending> accepted;
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    Pending pending;
    const auto id = engine_->submit(request(prompts()[0], "off", 16), pending.sink());
    if (id.ok()) {
      accepted.push_back(pending);
    } else {
      EXPECT_EQ(id.status().code(), Code::kExhausted);
      EXPECT_EQ(id.status().text(),
                "the queue is full: 4 requests wait; engine.queue_max is 4; try again later");
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (Pending& each : accepted) EXPECT_EQ(each.wait().finish, FinishReason::kLength);
}

TEST_F(EngineTest, a_cancelled_request_ends_once_and_gives_everything_back) {
  EngineOptions o = options();
  o.max_sequences = 2;
  o.routes.push_back(route(
      "lookup",
      plugin("specd.drafter.prompt_lookup",
             {{"num_speculative_tokens", 4}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}}),
      4));
  start(o);
  const Outcome whole = run(request(prompts()[2], "off", 64));
  std::mt19937 random(9);
  for (int round = 0; round < 15; ++round) {
    std::vector<Pending> pending;
    std::vector<std::string> ids;
    for (int i = 0; i < 5; ++i) {
      Request r = request(prompts()[2], i % 2 ? "lookup" : "off", 64);
      r.id = "round" + std::to_string(round) + "-" + std::to_string(i);
      ids.push_back(r.id);
      pending.push_back(submit(r));
    }
    pending[0].wait_for_tokens(random() % 20);
    // In any state: running, prefilling, waiting; some twice, one unknown.
    engine_->cancel(ids[0]);
    engine_->cancel(ids[3]);
    engine_->cancel(ids[3]);
    engine_->cancel("nobody");
    for (size_t i = 0; i < pending.size(); ++i) {
      const Outcome outcome = pending[i].wait();
      if (outcome.finish == FinishReason::kCancelled) {
        EXPECT_TRUE(i == 0 || i == 3);
        EXPECT_EQ(outcome.error.code(), Code::kCancelled);
        EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), whole.tokens.begin()));
      } else {
        EXPECT_EQ(outcome.tokens, whole.tokens);
      }
    }
    audit();
  }
}

TEST_F(EngineTest, draining_refuses_new_requests_and_completes_the_others) {
  start(options());
  Pending running = submit(request(prompts()[3], "off", 32));
  engine_->start_drain();
  const auto late = engine_->submit(request("x", "off", 4), [](const Event&) {});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), Code::kUnavailable);
  EXPECT_EQ(running.wait().finish, FinishReason::kLength);
  EXPECT_TRUE(engine_->wait_idle(10'000));
}

TEST_F(EngineTest, destroying_the_engine_ends_every_request) {
  start(options());
  std::vector<Pending> pending;
  for (int i = 0; i < 30; ++i) pending.push_back(submit(request(prompts()[0], "off", 500)));
  pending[0].wait_for_tokens(1);
  engine_.reset();
  int cancelled = 0;
  for (Pending& each : pending) cancelled += each.wait().finish == FinishReason::kCancelled ? 1 : 0;
  EXPECT_GT(cancelled, 0);
}

TEST_F(EngineTest, a_request_id_is_unique_while_it_runs) {
  start(options());
  Request r = request(prompts()[0], "off", 200);
  r.id = "mine";
  Pending first = submit_slow(r);
  const auto again = engine_->submit(r, [](const Event&) {});
  ASSERT_FALSE(again.ok());
  EXPECT_TRUE(again.status().text().starts_with("request_id")) << again.status().to_string();
  first.slow(false);
  first.wait();
  EXPECT_TRUE(engine_->wait_idle(10'000));
  EXPECT_EQ(run(r).finish, FinishReason::kLength);
}

TEST_F(EngineTest, clients_on_many_threads_do_not_disturb_each_other) {
  EngineOptions o = options();
  o.routes.push_back(route(
      "lookup",
      plugin("specd.drafter.prompt_lookup",
             {{"num_speculative_tokens", 4}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}}),
      4));
  start(o);
  const Outcome expected = run(request(prompts()[4], "off", 16));
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 4; ++i) {
        Pending pending;
        const auto id = engine_->submit(request(prompts()[4], (c + i) % 2 ? "lookup" : "off", 16),
                                        pending.sink());
        if (!id.ok() || pending.wait().tokens != expected.tokens) ++wrong;
        (void)engine_->routes();
        (void)engine_->status();
        (void)engine_->plugins();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(EngineTest, a_route_that_cannot_be_is_reported_and_left_out) {
  EngineOptions o = options();
  o.routes.push_back(route("ghost", plugin("org.example.none"), 4));
  o.routes.push_back(
      route("typo", plugin("specd.drafter.prompt_lookup", {{"num_speculative_token", 4}}), 4));
  start(o);
  EXPECT_EQ(report("ghost").state, RouteState::kRefused);
  EXPECT_NE(report("ghost").refused.to_string().find("org.example.none"), std::string::npos)
      << report("ghost").refused.to_string();
  EXPECT_NE(report("typo").refused.to_string().find("num_speculative_token"), std::string::npos)
      << report("typo").refused.to_string();
  const auto refused = engine_->submit(request("x", "ghost", 4), [](const Event&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(run(request("x", "off", 4)).tokens.size(), 4u);
  audit();
  o.default_route = "ghost";
  o.plugin_cache_directory = folder_ + "/cache";
  EXPECT_FALSE(Engine::create(o, {}).ok());
}

TEST_F(EngineTest, options_out_of_range_name_their_key) {
  const auto refused = [&](const char* key, auto&& change) {
    EngineOptions o = options();
    o.plugin_cache_directory = folder_ + "/cache";
    change(o);
    const auto made = Engine::create(o, {});
    ASSERT_FALSE(made.ok()) << key;
    EXPECT_NE(made.status().text().find(key), std::string::npos) << made.status().to_string();
  };
  refused("engine.max_sequences", [](EngineOptions& o) { o.max_sequences = 0; });
  refused("engine.step_tokens_max", [](EngineOptions& o) { o.step_tokens_max = 3; });
  refused("engine.threads", [](EngineOptions& o) { o.threads = -1; });
  refused("engine.isa", [](EngineOptions& o) { o.isa = "mmx"; });
  refused("model.kv.bytes_max", [](EngineOptions& o) { o.model.kv_bytes_max = 1; });
  refused("default_route", [](EngineOptions& o) { o.default_route = "x"; });
  refused("config.json", [](EngineOptions& o) { o.model.path = "/nonexistent"; });
}

}  // namespace
}  // namespace specd
