// Verifiers with a law, in the engine: they get the laws of their rows and no others, and the texts
// follow the law of plain decoding.
#include <gtest/gtest.h>

#include <map>

#include "tests/core/engine_rig.h"
#include "tests/plugins/chi_square.h"

namespace specd {
namespace {

class Verifiers : public EngineTest {
 protected:
  static PluginUse rejection() { return plugin("specd.verifier.rejection"); }
  static RouteOptions law_route(const std::string& name, PluginUse drafter, int32_t nodes) {
    RouteOptions made = route(name, std::move(drafter), nodes, rejection());
    made.guarantee = Guarantee::kLaw;
    return made;
  }
  static PluginUse lookup(int32_t tokens) {
    return plugin(
        "specd.drafter.prompt_lookup",
        {{"num_speculative_tokens", tokens}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}});
  }
};

TEST_F(Verifiers, at_temperature_0_rejection_writes_plain_text_with_any_drafts_and_neighbours) {
  EngineOptions o = options();
  o.routes = {law_route("law", lookup(5), 5), route("match", lookup(5), 5)};
  start(o);
  std::vector<Request> plain, mixed;
  const char* const names[] = {"law", "match", "off"};
  for (size_t i = 0; i < prompts().size(); ++i) {
    plain.push_back(request(prompts()[i], "off", 32));
    mixed.push_back(request(prompts()[i], names[i % 3], 32));
  }
  expect_identical(run_all(mixed), run_all(plain), "mixed");
  for (Request& each : plain) each.route = "law";
  const std::vector<Outcome> law = run_all(plain);
  for (Request& each : plain) each.route = "off";
  expect_identical(law, run_all(plain), "law");
  EXPECT_GT(report("law").counts.accepted, 0u);
  EXPECT_EQ(report("law").counts.cut, 0u) << report("law").last_problem;
}

TEST_F(Verifiers, the_same_seed_and_drafts_give_the_same_text_and_neighbours_keep_their_bits) {
  EngineOptions o = options();
  o.routes = {law_route("law", lookup(4), 4)};
  start(o);
  std::vector<Request> requests, plain;
  for (size_t i = 0; i < prompts().size(); ++i) {
    requests.push_back(request(prompts()[i], i % 2 == 0 ? "law" : "off", 24, 0.9f, 7 + i));
    plain.push_back(request(prompts()[i], "off", 24, 0.9f, 7 + i));
  }
  const std::vector<Outcome> first = run_all(requests);
  expect_identical(run_all(requests), first, "again");
  const std::vector<Outcome> off = run_all(plain);
  int differ = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 1) {
      EXPECT_EQ(first[i].tokens, off[i].tokens) << "a neighbour without a verifier";
    } else {
      differ += first[i].tokens != off[i].tokens ? 1 : 0;
    }
  }
  EXPECT_GT(differ, 0) << "the text is another one, of the same law";
}

// Tokens 2 to 4 of texts over many seeds: as often as plain decoding draws them in the same batches,
// with cuts, penalties and a bias in force. The model drafts for itself and with the target's noise, which
// a rule must not use again.
TEST_F(Verifiers, rejection_follows_the_law_of_plain_decoding_in_mixed_batches) {
  EngineOptions o = options();
  o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
  o.routes = {law_route(
      "law", plugin("specd.drafter.draft_target", {{"model", "self"}, {"draft_tokens", 3}}), 3)};
  start(o);
  constexpr uint64_t kSeeds = 1500;
  const std::string prompt = prompts()[2];
  using Counts = std::map<std::vector<int32_t>, double>;
  Counts law, plain, all;
  for (uint64_t begin = 0; begin < kSeeds; begin += 50) {
    std::vector<Request> requests;
    for (uint64_t seed = begin; seed < begin + 50; ++seed) {
      for (const char* name : {"law", "off"}) {
        Request r = request(prompt, name, 6, 1.2f, 2 * seed + requests.size() % 2);
        r.sampling.top_k = 3;
        r.sampling.repetition_penalty = 1.1f;
        r.logit_bias = {{.token = 40, .add = 2}};
        requests.push_back(r);
      }
    }
    const std::vector<Outcome> outcomes = run_all(requests);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const std::vector<int32_t>& tokens = outcomes[i].tokens;
      ASSERT_EQ(tokens.size(), 6u);
      const std::vector<int32_t> cell(tokens.begin() + 1, tokens.begin() + 4);
      (i % 2 == 0 ? law : plain)[cell] += 1;
      all[cell] += 1;
    }
  }
  const RouteReport seen = report("law");
  ASSERT_GE(seen.counts.accepted_at.size(), 3u);
  for (size_t depth = 0; depth < 3; ++depth)
    EXPECT_GT(seen.counts.accepted_at[depth], 20u) << depth;
  EXPECT_GT(seen.counts.rejected, kSeeds / 4);
  EXPECT_EQ(seen.counts.cut, 0u) << seen.last_problem;
  // Two samples of the same size against their mean; rare cells are one.
  double x2 = 0, few_law = 0, few_all = 0;
  int cells = 0;
  const auto add = [&](double counted, double of_both) {
    x2 += 2 * (counted - of_both / 2) * (counted - of_both / 2) / (of_both / 2);
    ++cells;
  };
  for (const auto& [cell, count] : all) {
    if (count >= 10) {
      add(law[cell], count);
    } else {
      few_law += law[cell];
      few_all += count;
    }
  }
  if (few_all >= 10) add(few_law, few_all);
  ASSERT_GT(cells, 10);
  EXPECT_GE(chi_square_tail(x2, cells - 1), 1e-4) << cells << " cells";
}

TEST_F(Verifiers, a_route_of_level_law_keeps_what_requests_ask_for_also_with_starved_pages) {
  EngineOptions o = options();
  o.routes = {law_route("law", lookup(4), 4)};
  o.model.kv_bytes_max = 640 << 10;
  start(o);
  std::vector<Request> requests;
  for (size_t i = 0; i < 24; ++i) {
    Request r = request(prompts()[i % prompts().size()], "law", 60, 1.0f, i);
    r.sampling.typical_p = 0.9f;
    r.stop_tokens = {40, 41, 42};
    r.min_tokens = 20;
    for (int32_t token = 300; token < 1000; ++token) r.logit_bias.push_back({token, -100});
    requests.push_back(r);
  }
  const std::vector<Outcome> outcomes = run_all(requests);
  int32_t preemptions = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_GE(outcome.tokens.size(), 20u);
    EXPECT_NE(outcome.finish, FinishReason::kError) << outcome.error.to_string();
    for (size_t i = 0; i < outcome.tokens.size(); ++i) {
      const int32_t token = outcome.tokens[i];
      EXPECT_FALSE(token >= 300 && token < 1000);
      EXPECT_FALSE(i < 19 && token >= 40 && token <= 42) << "a text that is too short";
    }
    preemptions += outcome.usage.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(report("law").counts.accepted, 0u);
  EXPECT_EQ(report("law").counts.cut, 0u) << report("law").last_problem;
}

TEST_F(Verifiers, a_pair_that_promises_less_than_the_route_asks_for_is_refused_in_words) {
  EngineOptions o = options();
  RouteOptions more = law_route("more", lookup(3), 3);
  more.guarantee = Guarantee::kIdentical;
  RouteOptions tree = law_route("tree", plugin("specd.drafter.suffix", {{"max_branches", 3}}), 8);
  o.routes = {more, tree};
  start(o);
  EXPECT_NE(report("more").refused.to_string().find(
                "reaches guarantee 'law', the route asks for 'identical'"),
            std::string::npos)
      << report("more").refused.to_string();
  EXPECT_NE(report("tree").refused.to_string().find("which the verifier does not judge"),
            std::string::npos)
      << report("tree").refused.to_string();
}

}  // namespace
}  // namespace specd
