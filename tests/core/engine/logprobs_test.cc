// Log-probabilities of new tokens and of prompts: the same on every route, beside any neighbours, and
// equal to those that a plain pass over the final text gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <semaphore>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

class LogprobsTest : public EngineTest {
 protected:
  static constexpr int32_t kTop = 5;

  // Requests that draw from something else than the model's own distribution.
  static std::vector<Request> changed_requests(const std::string& route_name) {
    std::vector<Request> all;
    for (size_t i = 0; i < prompts().size(); ++i) {
      Request r = request(prompts()[i], route_name, 24, i % 4 == 0 ? 0 : 0.8f, 60 + i);
      if (i % 2 == 1) r.sampling.repetition_penalty = 1.3f;
      if (i % 3 == 1) r.sampling.top_k = 40;
      if (i % 3 == 2) r.logit_bias = {{.token = 42, .add = 6}, {.token = 17, .add = -100}};
      r.logprobs = kTop;
      all.push_back(r);
    }
    return all;
  }

  // The request that reads the whole text as a prompt.
  Request reading(const Request& r, const Outcome& outcome) {
    Request whole;
    whole.prompt_tokens = engine_->encode(r.prompt).value();
    whole.prompt_tokens->insert(whole.prompt_tokens->end(), outcome.tokens.begin(),
                                outcome.tokens.end());
    whole.route = "off";
    whole.max_tokens = 1;
    whole.prompt_logprobs = kTop;
    return whole;
  }

  static void expect_near(const Logprobs& found, size_t first, const Logprobs& expected,
                          size_t from, size_t n, const std::string& what) {
    ASSERT_GE(found.token.size(), first + n) << what;
    ASSERT_GE(expected.token.size(), from + n) << what;
    ASSERT_EQ(found.n_top, expected.n_top) << what;
    const auto top = static_cast<size_t>(found.n_top);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(found.token[first + i], expected.token[from + i], 1e-5) << what << ", " << i;
      for (size_t k = 0; k < top; ++k) {
        const size_t a = (first + i) * top + k, b = (from + i) * top + k;
        ASSERT_EQ(found.top_token[a], expected.top_token[b]) << what << ", " << i;
        ASSERT_NEAR(found.top[a], expected.top[b], 1e-5) << what << ", " << i;
      }
    }
  }
};

TEST_F(LogprobsTest, of_every_emitted_token_are_those_of_a_plain_pass_over_the_final_text) {
  EngineOptions o = options();
  o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
  const auto lookup = plugin("specd.drafter.prompt_lookup", {{"prompt_lookup_min", 1}});
  const auto own = plugin("specd.drafter.draft_target", {{"model", "self"}, {"draw", "own"}});
  const auto own_tree =
      plugin("specd.drafter.draft_target",
             {{"model", "self"}, {"draw", "own"}, {"tree", {{"branches", 2}, {"nodes", 8}}}});
  const auto suffix = plugin("specd.drafter.suffix");
  o.routes = {route("chain", lookup, 5),
              route("suffix", suffix, 8),
              route("law", own, 4, plugin("specd.verifier.rejection")),
              route("block", own, 4, plugin("specd.verifier.block")),
              route("law_tree", own_tree, 8, plugin("specd.verifier.tree_rejection")),
              route("typical", lookup, 5, plugin("specd.verifier.typical"))};
  for (size_t i = 2; i < o.routes.size(); ++i) {
    o.routes[i].guarantee = i + 1 < o.routes.size() ? Guarantee::kLaw : Guarantee::kNone;
  }
  start(o);
  for (const char* name : {"off", "chain", "suffix", "law", "block", "law_tree", "typical"}) {
    const std::vector<Request> requests = changed_requests(name);
    const std::vector<Outcome> outcomes = run_all(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::string what = std::string(name) + ", request " + std::to_string(i);
      const size_t n = outcomes[i].tokens.size();
      ASSERT_EQ(n, 24u) << what << outcomes[i].error.to_string();
      ASSERT_EQ(outcomes[i].logprobs.token.size(), n) << what;
      EXPECT_TRUE(outcomes[i].prompt_logprobs.token.empty());
      const Outcome plain = run(reading(requests[i], outcomes[i]));
      const size_t n_all = plain.prompt_logprobs.token.size();
      expect_near(outcomes[i].logprobs, 0, plain.prompt_logprobs, n_all - n, n, what);
    }
    if (std::string(name) == "off") continue;
    EXPECT_GT(report(name).counts.accepted, 0u) << name;
    EXPECT_EQ(report(name).counts.cut, 0u) << name << ": " << report(name).last_problem;
  }
}

TEST_F(LogprobsTest, are_of_the_logits_before_the_request_changes_them) {
  start(options());
  Request r = request(prompts()[0], "off", 1);
  r.logprobs = 20;
  const Logprobs plain = run(r).logprobs;
  EXPECT_EQ(plain.token[0], plain.top[0]) << "greedy draws the most likely token";
  EXPECT_TRUE(std::is_sorted(plain.top.rbegin(), plain.top.rend()));
  double mass = 0;
  for (const float each : plain.top) mass += std::exp(double{each});
  EXPECT_GT(mass, 0.5);
  EXPECT_LT(mass, 1);
  r.sampling.temperature = 5;
  r.sampling.top_k = 2;
  r.sampling.repetition_penalty = 1.5f;
  r.logit_bias = {{.token = 7, .add = 100}};
  const Outcome changed = run(r);
  EXPECT_EQ(changed.tokens, std::vector<int32_t>{7});
  EXPECT_EQ(changed.logprobs.top, plain.top);
  EXPECT_EQ(changed.logprobs.top_token, plain.top_token);
  EXPECT_LT(changed.logprobs.token[0], plain.top[0]);
}

// Chunks of several sizes, few pages, and neighbours that draft.
TEST_F(LogprobsTest, of_a_prompt_come_once_and_in_order_however_it_is_cut) {
  EngineOptions o = options();
  o.routes = {route("chain", plugin("specd.drafter.prompt_lookup", {{"prompt_lookup_min", 1}}), 8)};
  start(o);
  const std::string text = long_prompt();
  Request r = request(text, "off", 4);
  r.prompt_logprobs = kTop;
  r.logprobs = kTop;
  const Outcome whole = run(r);
  const size_t n_prompt = engine_->encode(text).value().size();
  ASSERT_GT(n_prompt, 200u) << "longer than the rows that are scored in one step";
  ASSERT_EQ(whole.prompt_logprobs.token.size(), n_prompt - 1);
  const auto again = [&](const Outcome& found, const std::string& what) {
    EXPECT_EQ(found.tokens, whole.tokens) << what;
    EXPECT_EQ(found.prompt_logprobs.token, whole.prompt_logprobs.token) << what;
    EXPECT_EQ(found.prompt_logprobs.top, whole.prompt_logprobs.top) << what;
    EXPECT_EQ(found.prompt_logprobs.top_token, whole.prompt_logprobs.top_token) << what;
    EXPECT_EQ(found.logprobs.token, whole.logprobs.token) << what;
  };
  const Outcome cached = run(r);
  again(cached, "the cache has the prompt");
  EXPECT_EQ(cached.usage.cached_prompt_tokens, 0);
  for (const int32_t rows : {12, 33}) {
    for (const int32_t pages : {0, 40}) {
      o.step_tokens_max = rows;
      o.max_sequences = 4;
      o.model.kv_pages = pages;
      o.model.kv_bytes_max = pages == 0 ? 64 << 20 : 0;
      start(o);
      const std::string what = std::to_string(rows) + " rows, " + std::to_string(pages) + " pages";
      std::vector<Request> requests;
      for (int i = 0; i < 6; ++i) {
        requests.push_back(i % 3 == 2 ? request(prompts()[0], "chain", 60) : r);
        requests.back().route = i % 2 == 0 ? "off" : "chain";
      }
      const std::vector<Outcome> outcomes = run_all(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        if (i % 3 != 2) again(outcomes[i], what);
      }
    }
  }
}

// An urgent request takes the only place while the prompt is half read.
TEST_F(LogprobsTest, of_a_prompt_that_lost_its_pages_come_once) {
  EngineOptions o = options();
  o.step_tokens_max = 16;
  o.max_sequences = 1;
  start(o);
  Request r = request(long_prompt(), "off", 4);
  r.prompt_logprobs = kTop;
  const Outcome undisturbed = run(r);
  std::binary_semaphore half_read(0), go_on(0);
  Pending pending;
  int events = 0;
  ASSERT_TRUE(engine_
                  ->submit(r,
                           [&, sink = pending.sink()](const Event& event) {
                             if (++events == 3) {
                               half_read.release();
                               go_on.acquire();
                             }
                             sink(event);  // last: who waits for the end may destroy the others
                           })
                  .ok());
  half_read.acquire();
  Request urgent = request(prompts()[0], "off", 4);
  urgent.priority = -EngineLimits::kPriority;
  Pending first = submit(urgent);
  go_on.release();
  first.wait();
  const Outcome disturbed = pending.wait();
  EXPECT_EQ(disturbed.usage.preemptions, 1);
  EXPECT_EQ(disturbed.tokens, undisturbed.tokens);
  EXPECT_EQ(disturbed.prompt_logprobs.token, undisturbed.prompt_logprobs.token);
  EXPECT_EQ(disturbed.prompt_logprobs.top_token, undisturbed.prompt_logprobs.top_token);
}

TEST_F(LogprobsTest, more_most_likely_tokens_than_there_may_be_are_refused) {
  start(options());
  for (const int32_t n : {-1, 21}) {
    Request r = request(prompts()[0], "off", 4);
    r.logprobs = n;
    EXPECT_EQ(engine_->check(r).to_string(),
              "INVALID_ARGUMENT: logprobs: expected 0 to 20, found " + std::to_string(n));
    r.logprobs.reset();
    r.prompt_logprobs = n;
    EXPECT_EQ(engine_->check(r).field(), "prompt_logprobs");
  }
}

TEST_F(LogprobsTest, an_echo_is_the_prompt_as_given_and_of_ids_what_they_say) {
  start(options());
  Request r = request(prompts()[2], "off", 1);
  r.echo = true;
  Pending text, ids;
  EXPECT_EQ(engine_->submit(r, text.sink()).value().prompt_text, prompts()[2]);
  r.prompt_tokens = engine_->encode(prompts()[2]).value();
  r.prompt.clear();
  const std::string said = engine_->submit(r, ids.sink()).value().prompt_text;
  EXPECT_NE(said.find(prompts()[2]), std::string::npos) << said;
  text.wait();
  ids.wait();
}

}  // namespace
}  // namespace specd
