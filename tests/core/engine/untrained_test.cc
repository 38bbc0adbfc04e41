// The drafters that need no trained heads, side by side in one engine: prompt lookup, suffix,
// lookahead, draft trees and cascades.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/engine_rig.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

constexpr int32_t kUntrainedTokens = 48;

class Untrained : public EngineTest {
 protected:
  // A request on each of these drafts in a way of its own.
  EngineOptions with_all(const std::string& model) {
    EngineOptions o = options(model);
    o.draft_models = {{.name = "draft",
                       .path = std::string(SPECD_TEST_ZOO) + "/pico-draft",
                       .kv_dtype = KvDType::kF32}};
    const Json suffix = {{"plugin", "specd.drafter.suffix"}, {"config", {{"max_spec_tokens", 7}}}};
    const Json lookahead = {{"plugin", "specd.drafter.lookahead"},
                            {"config", {{"window", 2}, {"ngram", 3}, {"guesses", 2}}}};
    const Json tree = {
        {"plugin", "specd.drafter.draft_target"},
        {"config",
         {{"model", "draft"}, {"draft_tokens", 3}, {"tree", {{"branches", 2}, {"nodes", 7}}}}}};
    const auto cascade = [](const Json& first, const Json& second) {
      return plugin("specd.drafter.cascade",
                    {{"drafters", {first, second}}, {"min_nodes", Json::array({2})}});
    };
    o.routes = {
        route("prompt_lookup",
              plugin("specd.drafter.prompt_lookup",
                     {{"num_speculative_tokens", 5}, {"prompt_lookup_min", 2}}),
              5),
        route("suffix", plugin("specd.drafter.suffix", suffix["config"]), 7),
        route("suffix_tree",
              plugin("specd.drafter.suffix",
                     {{"max_spec_tokens", 12}, {"max_spec_factor", 2}, {"max_branches", 3}}),
              12),
        route("lookahead", plugin("specd.drafter.lookahead", Json::object()), 55),
        route("lookahead_prompt",
              plugin("specd.drafter.lookahead",
                     {{"window", 2}, {"ngram", 3}, {"guesses", 2}, {"pool_from_prompt", true}}),
              7),
        route("draft_tree", plugin("specd.drafter.draft_target", tree["config"]), 7),
        route("cascade", cascade(suffix, tree), 8),
        route("cascade_lookahead", cascade(suffix, lookahead), 8),
    };
    return o;
  }
  static std::vector<std::string> names(const EngineOptions& o) {
    std::vector<std::string> out;
    for (const RouteOptions& each : o.routes) out.push_back(each.name);
    return out;
  }
  void expect_sound(const std::string& name) {
    const RouteReport r = report(name);
    EXPECT_EQ(r.state, RouteState::kLive) << name << ": " << r.refused.to_string();
    EXPECT_EQ(r.counts.cut, 0u) << name << ": " << r.last_problem;
    EXPECT_EQ(r.counts.lost, 0u) << name << ": " << r.last_problem;
  }
};

TEST_F(Untrained, methods_from_text_alone_write_1_3_tokens_a_step_on_the_shipped_code_prompts) {
#if SPECD_HAS_SANITIZER
  GTEST_SKIP() << "slow, and about tokens alone";
#endif
  start(with_all("pico-target"));
  std::vector<std::string> files;
  const std::string folder = std::string(SPECD_TEST_REFERENCE) + "/../../configs/prompts";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path());
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  ASSERT_GE(files.size(), 6u);
  for (const std::string name : {"prompt_lookup", "suffix", "suffix_tree", "lookahead",
                                 "lookahead_prompt", "cascade_lookahead"}) {
    std::vector<Request> all;
    for (const std::string& file : files) all.push_back(request(file, name, 96));
    int64_t tokens = 0, steps = 0;
    for (const Outcome& each : run_all(all)) {
      tokens += static_cast<int64_t>(each.tokens.size()) - 1;  // the first is the prompt's
      steps += each.usage.steps - 1;
    }
    const double tau = static_cast<double>(tokens) / static_cast<double>(steps);
    RecordProperty(name, std::to_string(tau));
    EXPECT_GE(tau, 1.3) << name;
    expect_sound(name);
  }
}

TEST_F(Untrained, in_one_batch_they_change_no_token) {
  const EngineOptions o = with_all("pico-draft");
  start(o);
  std::vector<Request> all;
  for (const std::string& prompt : prompts()) {
    all.push_back(request(prompt, "off", kUntrainedTokens));
    all.push_back(request(prompt, "off", kUntrainedTokens, 0.8f, 7));
  }
  const std::vector<Outcome> plain = run_all(all);
  const std::vector<std::string> routes = names(o);
  for (size_t shift = 0; shift < 2; ++shift) {
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t at = (i + shift * 3) % (routes.size() + 1);
      all[i].route = at == routes.size() ? "off" : routes[at];
    }
    expect_identical(run_all(all), plain, "mixed " + std::to_string(shift));
  }
  for (const std::string& name : routes) {
    expect_sound(name);
    EXPECT_GT(report(name).counts.drafted, 0u) << name;
  }
}

TEST_F(Untrained, a_prompt_of_one_token_repeated_and_one_up_to_the_models_limit_change_no_token) {
  EngineOptions o = with_all("pico-draft");
  start(o);
  const int32_t limit = engine_->model().max_positions;
  const std::vector<int32_t> code = engine_->encode(prompts()[0] + prompts()[1]).value();
  std::vector<Request> all;
  const auto add = [&](std::vector<int32_t> ids, int32_t max_tokens) {
    Request r = request("", "off", max_tokens);
    r.prompt_tokens = std::move(ids);
    all.push_back(std::move(r));
  };
  add(std::vector<int32_t>(200, code[3]), kUntrainedTokens);
  add({code[0]}, kUntrainedTokens);
  std::vector<int32_t> full;
  while (full.size() < static_cast<size_t>(limit) - 20)
    full.push_back(code[full.size() % code.size()]);
  add(full, 20);  // ends where the context does
  add(std::vector<int32_t>(static_cast<size_t>(limit) - 1, code[5]), 1);
  const std::vector<Outcome> plain = run_all(all);
  for (const std::string& name : names(o)) {
    for (Request& each : all) each.route = name;
    expect_identical(run_all(all), plain, name);
    expect_sound(name);
    EXPECT_GT(report(name).counts.drafted, 0u) << name;
  }
}

TEST_F(Untrained, a_corpus_is_drafted_from_once_it_is_read_and_goes_with_its_route) {
  start(options());
  std::vector<Request> all;
  for (const std::string& prompt : prompts())
    all.push_back(request(prompt, "off", kUntrainedTokens));
  const std::vector<Outcome> plain = run_all(all);
  // What these prompts are answered with, beside much else.
  const std::string path = folder_ + "/corpus.jsonl";
  {
    std::ofstream file(path);
    std::vector<int32_t> other(500);
    for (size_t i = 0; i < 400; ++i) {
      for (size_t at = 0; at < other.size(); ++at)
        other[at] = static_cast<int32_t>((i * 7919 + at * at * 31 + 17) % 4096);
      file << Json(other).dump() << '\n';
    }
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<int32_t> document = engine_->encode(all[i].prompt).value();
      document.insert(document.end(), plain[i].tokens.begin(), plain[i].tokens.end());
      file << Json(document).dump() << '\n';
    }
  }
  const auto suffix = [&](const std::string& name, Json config) {
    config["max_spec_factor"] = 4;
    return route(name, plugin("specd.drafter.suffix", std::move(config)), 8);
  };
  const auto accepted_on = [&](const std::string& name) {
    for (Request& each : all) each.route = name;
    expect_identical(run_all(all), plain, name);
    return report(name).counts.accepted;
  };
  ASSERT_TRUE(engine_->apply_route(suffix("without", Json::object())).ok());
  const uint64_t total = all.size() * kUntrainedTokens;
  EXPECT_LT(accepted_on("without"), total * 7 / 10);
  // A route that goes early, as a rule before its corpus is indexed, takes its thread with it.
  const size_t threads = entries_of("/proc/self/task");
  ASSERT_TRUE(engine_->apply_route(suffix("gone", {{"corpus", path}})).ok());
  std::vector<Pending> running;
  for (Request& each : all) {
    each.route = "gone";
    running.push_back(submit(each));
  }
  ASSERT_TRUE(engine_->delete_route("gone").ok());
  for (size_t i = 0; i < running.size(); ++i)
    EXPECT_EQ(running[i].wait().tokens, plain[i].tokens) << i;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (entries_of("/proc/self/task") > threads && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
  ASSERT_TRUE(engine_->apply_route(suffix("with", {{"corpus", path}})).ok());
  uint64_t before = 0, gained = 0;
  do {
    before = report("with").counts.accepted;
    gained = accepted_on("with") - before;
  } while (gained < total * 8 / 10 && std::chrono::steady_clock::now() < end);
  EXPECT_GE(gained, total * 8 / 10) << "nothing was drafted from the corpus";
  ASSERT_TRUE(engine_->delete_route("with").ok());
  ASSERT_TRUE(engine_->delete_route("without").ok());
}

}  // namespace
}  // namespace specd
