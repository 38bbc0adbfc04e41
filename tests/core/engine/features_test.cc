// What a request may ask of the sampler, each feature alone, without drafts, with chains and with
// trees: the same tokens, text, finish and log-probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

constexpr int32_t kFeatureTokens = 24;

struct Feature {
  const char* name;
  std::function<void(Request&)> ask;
};
const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"temperature", [](Request& r) { r.sampling.temperature = 1.3f; }},
      {"seed", [](Request& r) { r.sampling.seed = 99; }},
      {"top_k", [](Request& r) { r.sampling.top_k = 3; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0.5f; }},
      {"min_p", [](Request& r) { r.sampling.min_p = 0.3f; }},
      {"typical_p", [](Request& r) { r.sampling.typical_p = 0.4f; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 1.4f; }},
      {"frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = 1.5f; }},
      {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2; }},
      {"logit_bias",
       [](Request& r) {
         for (int32_t token = 3; token < 900; token += 3) {
           r.logit_bias.push_back({.token = token, .add = -100});
         }
       }},
      {"stop", [](Request& r) { r.stop = {"e"}; }},
      {"stop_tokens",
       [](Request& r) {
         for (int32_t token = 0; token < 1000; ++token) r.stop_tokens.push_back(token);
       }},
      {"min_tokens",  // of a text that a stop token ends at once
       [](Request& r) {
         for (int32_t token = 0; token < 1000; ++token) r.stop_tokens.push_back(token);
         r.min_tokens = 9;
       }},
      {"max_tokens", [](Request& r) { r.max_tokens = 5; }},
  };
  return all;
}

class Features : public EngineTest {
 protected:
  // Each feature on prompts that no other has, so that one record serves all; sampled ones and,
  // where that means something, greedy ones.
  static std::vector<Request> requests(const std::string& route_name, bool with_feature = true) {
    std::vector<Request> all;
    for (size_t f = 0; f < features().size(); ++f) {
      for (size_t p = 0; p < 3; ++p) {
        const std::string prompt = "# " + std::to_string(f) + "\n" + prompts()[p];
        Request r = request(prompt, route_name, kFeatureTokens, p == 2 ? 0 : 0.8f, 40 + p);
        if (with_feature) features()[f].ask(r);
        r.logprobs = 2;
        all.push_back(r);
      }
    }
    return all;
  }
};

TEST_F(Features, give_the_same_tokens_text_and_finish_without_drafts_with_chains_and_with_trees) {
  EngineOptions o = options();
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  const std::vector<Outcome> without = run_all(requests("off", false));
  for (size_t f = 0; f < features().size(); ++f) {
    bool changed = false;
    for (size_t i = 3 * f; i < 3 * f + 3; ++i) {
      changed = changed || plain[i].tokens != without[i].tokens;
    }
    EXPECT_TRUE(changed) << features()[f].name << " changes nothing";
  }
  const Json file = record(requests("off"), plain);
  o.routes.push_back(
      route("chain",
            plugin("specd.drafter.replay",
                   {{"file", file}, {"acceptance", 0.7}, {"draft_tokens", 4}, {"seed", 5}}),
            4));
  o.routes.push_back(
      route("tree",
            plugin("specd.drafter.replay", {{"file", file},
                                            {"acceptance", 0.7},
                                            {"draft_tokens", 4},
                                            {"seed", 6},
                                            {"tree", {{"nodes", 12}, {"probes", 2}}}}),
            12));
  start(o);
  for (const char* name : {"chain", "tree"}) {
    const std::vector<Outcome> outcomes = run_all(requests(name));
    for (size_t i = 0; i < plain.size(); ++i) {
      const char* feature = features()[i / 3].name;
      EXPECT_EQ(outcomes[i].tokens, plain[i].tokens) << name << ", " << feature;
      EXPECT_EQ(outcomes[i].text, plain[i].text) << name << ", " << feature;
      EXPECT_EQ(outcomes[i].finish, plain[i].finish) << name << ", " << feature;
      EXPECT_EQ(outcomes[i].logprobs.top_token, plain[i].logprobs.top_token)
          << name << ", " << feature;
      ASSERT_EQ(outcomes[i].logprobs.token.size(), plain[i].tokens.size())
          << name << ", " << feature;
      for (size_t k = 0; k < plain[i].tokens.size(); ++k) {
        EXPECT_NEAR(outcomes[i].logprobs.token[k], plain[i].logprobs.token[k], 1e-5)
            << name << ", " << feature;
      }
    }
    const RouteReport report = this->report(name);
    EXPECT_GT(report.counts.accepted, report.counts.steps / 2) << name;
    EXPECT_GT(report.counts.rejected, 0u) << name;
    EXPECT_EQ(report.counts.cut, 0u) << name << ": " << report.last_problem;
  }
}

// A stop token that nothing else would draw is forced by its bias.
TEST_F(Features, a_text_is_never_shorter_than_its_least_length) {
  start(options());
  constexpr int32_t kStop = 7;
  Request r = request(prompts()[0], "off", kFeatureTokens);
  r.stop_tokens = {kStop};
  r.logit_bias = {{.token = kStop, .add = 100}};
  EXPECT_EQ(run(r).tokens, std::vector<int32_t>{kStop});
  for (const int32_t least : {1, 2, 9, kFeatureTokens}) {
    r.min_tokens = least;
    const Outcome outcome = run(r);
    ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(std::min(least + 1, kFeatureTokens)));
    EXPECT_EQ(std::count(outcome.tokens.begin(), outcome.tokens.end(), kStop),
              least < kFeatureTokens ? 1 : 0);
    EXPECT_EQ(outcome.finish, least < kFeatureTokens ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST_F(Features, a_stop_string_counts_from_the_token_that_makes_the_least_length) {
  start(options());
  Request r = request(prompts()[0], "off", kFeatureTokens);
  const Outcome whole = run(r);
  std::vector<std::string> front;  // the text of the first n tokens
  for (int32_t n = 1; n <= kFeatureTokens; ++n) {
    r.max_tokens = n;
    front.push_back(run(r).text);
  }
  r.max_tokens = kFeatureTokens;
  constexpr size_t kLeast = 6;
  const std::string stop = whole.text.substr(2, 1);  // early in the text
  const size_t from = front[kLeast - 2].size();      // where the text of the sixth token begins
  const size_t expected = whole.text.find(stop, from);
  ASSERT_LT(whole.text.find(stop), from) << "the stop string must come early too";
  r.stop = {stop};
  r.min_tokens = kLeast;
  EXPECT_EQ(run(r).text, whole.text.substr(0, expected));
  // What was sent before is part of none.
  const std::string across = whole.text.substr(from - 2, 4);
  ASSERT_EQ(whole.text.find(across, from), std::string::npos);
  r.stop = {across};
  EXPECT_EQ(run(r).text, whole.text);
  r.min_tokens = 0;
  EXPECT_EQ(run(r).text, whole.text.substr(0, whole.text.find(across)));
}

TEST_F(Features, a_bias_forbids_or_forces_a_token) {
  start(options());
  Request r = request(prompts()[1], "off", 8, 1.0f, 3);
  const Outcome free = run(r);
  r.logit_bias = {{.token = free.tokens[0], .add = -100}};
  const Outcome without = run(r);
  EXPECT_EQ(std::count(without.tokens.begin(), without.tokens.end(), free.tokens[0]), 0);
  r.logit_bias = {{.token = 42, .add = 100}};
  EXPECT_EQ(run(r).tokens, std::vector<int32_t>(8, 42));
}

TEST_F(Features, a_least_length_above_the_greatest_and_a_token_biased_twice_are_refused) {
  start(options());
  Request r = request(prompts()[1], "off", 8);
  r.min_tokens = 9;
  const auto refused = engine_->submit(r, [](const Event&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().to_string(), "INVALID_ARGUMENT: min_tokens: expected 0 to 8, found 9");
  r.min_tokens = 0;
  r.logit_bias = {{.token = 7, .add = 1}, {.token = 7, .add = 2}};
  const auto twice = engine_->submit(r, [](const Event&) {});
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.status().field(), "logit_bias[7]");
}

TEST_F(Features, a_text_may_fill_what_context_and_cache_leave_it) {
  EngineOptions o = options();
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = 9;  // less than the context
  start(o);
  const int32_t room = engine_->model().kv_pages_total * engine_->model().page_tokens;
  Request r = request(prompts()[2], "off", 0);
  r.fills_context = true;
  const Outcome outcome = run(r);
  EXPECT_EQ(outcome.finish, FinishReason::kLength) << outcome.error.text();
  EXPECT_EQ(outcome.usage.prompt_tokens + outcome.usage.completion_tokens, room);
  r.min_tokens = room;
  const auto refused = engine_->submit(r, [](const Event&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "min_tokens");
  r.min_tokens = 0;
  r.prompt = long_prompt();
  EXPECT_EQ(engine_->submit(r, [](const Event&) {}).status().field(), "prompt");
}

TEST_F(Features, what_became_of_drafts_is_recorded_when_asked_for) {
  EngineOptions o = options();
  o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 5)};
  start(o);
  Request r = request(prompts()[1], "lookup", 40);
  EXPECT_TRUE(run(r).usage.drafts.empty());
  r.records_drafts = true;
  const Usage usage = run(r).usage;
  EXPECT_GT(usage.draft_tokens, 0) << "nothing to record";
  int64_t drafted = 0, accepted = 0;
  for (const StepDrafts& each : usage.drafts) {
    EXPECT_GT(each.drafted, 0);
    EXPECT_LE(each.accepted, each.drafted);
    drafted += each.drafted;
    accepted += each.accepted;
  }
  EXPECT_EQ(drafted, usage.draft_tokens);
  EXPECT_EQ(accepted, usage.accepted_tokens);
}

}  // namespace
}  // namespace specd
