// Lookahead decoding through the whole engine: trees with guesses and probes, and the probes' top-1
// tokens returned to the drafter.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/json.h"
#include "tests/core/engine_rig.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

constexpr int32_t kLookaheadTokens = 56;

#if SPECD_HAS_SANITIZER
constexpr size_t kContexts = 2;  // slow, and about memory and threads rather than tokens
#else
constexpr size_t kContexts = 8;
#endif

class LookaheadEngine : public EngineTest {
 protected:
  static RouteOptions lookahead(const std::string& name, const Json& config,
                                int32_t draft_nodes_max) {
    return route(name, plugin("specd.drafter.lookahead", config), draft_nodes_max);
  }
  static std::vector<Request> requests(const std::string& route_name) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) {
      all.push_back(request(prompt, route_name, kLookaheadTokens));
      all.push_back(request(prompt, route_name, kLookaheadTokens, 0.8f, 1234));
    }
    return all;
  }
};

TEST_F(LookaheadEngine, no_setting_changes_a_token) {
  EngineOptions o = options();
  o.routes = {
      lookahead("default", Json::object(), 55),
      lookahead("text_too", {{"window", 4}, {"ngram", 4}, {"pool_from_prompt", true}}, 40),
      lookahead("other_keys", {{"max_window_size", 4}}, 15),
      lookahead("bigrams", {{"window", 5}, {"ngram", 2}, {"guesses", 3}}, 7),
      lookahead("few_guesses_fit", {{"window", 7}, {"ngram", 5}, {"guesses", 7}}, 30),
  };
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  for (const RouteOptions& each : o.routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    expect_identical(run_all(requests(each.name)), plain, each.name);
    const RouteReport r = report(each.name);
    EXPECT_GT(r.counts.accepted, 0u) << each.name;
    EXPECT_GT(r.counts.discarded, 0u) << each.name << ": no probe was computed";
    EXPECT_EQ(r.counts.cut, 0u) << each.name << ": " << r.last_problem;
    EXPECT_EQ(r.counts.lost, 0u) << each.name << ": " << r.last_problem;
  }
}

// Pages for two of sixteen requests: trees shrink to nothing, requests lose their pages and begin
// again in mid-stream.
TEST_F(LookaheadEngine, short_pages_cost_drafts_and_no_token) {
  EngineOptions o = options();
  o.routes = {lookahead("lookahead", {{"pool_from_prompt", true}}, 55)};
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = 12;
  start(o);
  const std::vector<Outcome> outcomes = run_all(requests("lookahead"));
  expect_identical(outcomes, plain, "12 pages");
  int32_t preemptions = 0;
  for (const Outcome& each : outcomes) preemptions += each.usage.preemptions;
  EXPECT_GT(preemptions, 0) << "pages were never short";
  EXPECT_GT(report("lookahead").counts.accepted, 0u);
  EXPECT_EQ(report("lookahead").counts.lost, 0u) << report("lookahead").last_problem;
}

// The reference ran the same model over the dense layout, with an explicit mask. As many steps for
// the same text: the same guesses at every step, hence the same answers to every probe.
TEST_F(LookaheadEngine, takes_as_many_steps_as_the_reference_with_its_explicit_mask) {
  EngineOptions o = options("pico-target");
  const Json goldens =
      parse_json_file(SPECD_TEST_REFERENCE "/lookahead_goldens.json", 1 << 24).value();
  o.step_tokens_max = 2048;  // more than a draft of 1024 nodes
  std::vector<Request> all;
  std::vector<std::vector<int32_t>> expected;
  for (size_t i = 0; i < kContexts; ++i) {
    const Json& context = goldens["contexts"][i];
    const std::string name = "r" + std::to_string(i);
    Json config;
    for (const char* key : {"window", "ngram", "guesses", "pool_from_prompt"}) {
      config[key] = context[key];
    }
    o.routes.push_back(lookahead(name, config, 1024));
    // The prompt ends with the token that its own pass gives.
    std::vector<int32_t> prompt = context["prompt"];
    std::vector<int32_t> text{prompt.back()};
    prompt.pop_back();
    for (const Json& step : context["steps"]) {
      const std::vector<int32_t> committed = step["committed"];
      text.insert(text.end(), committed.begin(), committed.end());
    }
    Request r = request("", name, static_cast<int32_t>(text.size()));
    r.prompt_tokens = prompt;
    all.push_back(r);
    expected.push_back(text);
  }
  start(o);
  for (size_t i = 0; i < all.size(); ++i) {
    const Outcome outcome = run(all[i]);
    EXPECT_EQ(outcome.tokens, expected[i]) << i;
    EXPECT_EQ(outcome.usage.steps, 1 + static_cast<int64_t>(goldens["contexts"][i]["steps"].size()))
        << i;
  }
}

TEST_F(LookaheadEngine, repetitive_code_takes_fewer_steps_than_tokens) {
  EngineOptions o = options("pico-target");
  o.routes = {lookahead("lookahead", Json::object(), 55)};
  start(o);
  const std::string prompt =
      "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    "
      "return a * b\n\ndef div(a, b):\n";
  for (const float temperature : {0.0f, 0.8f}) {
    const Outcome plain = run(request(prompt, "off", 100, temperature, 5));
    const Outcome outcome = run(request(prompt, "lookahead", 100, temperature, 5));
    EXPECT_EQ(outcome.tokens, plain.tokens) << temperature;
    const double per_step = 100.0 / static_cast<double>(outcome.usage.steps);
    RecordProperty(temperature == 0 ? "greedy" : "seeded", std::to_string(per_step));
    EXPECT_GT(per_step, temperature == 0 ? 1.2 : 1.0);
  }
}

TEST_F(LookaheadEngine, route_that_is_too_narrow_for_the_window_is_refused_with_words) {
  EngineOptions o = options();
  o.routes = {lookahead("narrow", Json::object(), 8)};
  start(o);
  EXPECT_EQ(report("narrow").state, RouteState::kRefused);
  EXPECT_NE(report("narrow").refused.to_string().find("raise its draft_nodes_max (to 55"),
            std::string::npos)
      << report("narrow").refused.to_string();
}

}  // namespace
}  // namespace specd
