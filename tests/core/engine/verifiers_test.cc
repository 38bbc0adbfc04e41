// Verifiers with a law, in the engine: they get the laws of their rows and no others, and the texts
// follow the law of plain decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "tests/core/engine_rig.h"
#include "tests/plugins/chi_square.h"

namespace specd {
namespace {

class Verifiers : public EngineTest {
 protected:
  static RouteOptions law_route(const std::string& name, PluginUse drafter, int32_t nodes,
                                const std::string& verifier = "rejection") {
    RouteOptions made =
        route(name, std::move(drafter), nodes, plugin("specd.verifier." + verifier));
    made.guarantee = Guarantee::kLaw;
    return made;
  }
  static PluginUse lookup(int32_t tokens) {
    return plugin(
        "specd.drafter.prompt_lookup",
        {{"num_speculative_tokens", tokens}, {"prompt_lookup_min", 1}, {"prompt_lookup_max", 3}});
  }
};

using Counts = std::map<std::vector<int32_t>, double>;

// The p-value of two samples of the same size for having one law; rare cells are one.
double same_law_p(const Counts& one, const Counts& other) {
  Counts all = one;
  for (const auto& [cell, count] : other) all[cell] += count;
  double x2 = 0, few_one = 0, few_all = 0;
  int cells = 0;
  const auto add = [&](double counted, double of_both) {
    x2 += 2 * (counted - of_both / 2) * (counted - of_both / 2) / (of_both / 2);
    ++cells;
  };
  for (const auto& [cell, count] : all) {
    const auto found = one.find(cell);
    const double counted = found == one.end() ? 0 : found->second;
    if (count >= 10) {
      add(counted, count);
    } else {
      few_one += counted;
      few_all += count;
    }
  }
  if (few_all >= 10) add(few_one, few_all);
  EXPECT_GT(cells, 10);
  return chi_square_tail(x2, cells - 1);
}

TEST_F(Verifiers, at_temperature_0_all_write_plain_text_with_any_drafts_and_neighbours) {
  EngineOptions o = options();
  o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
  const auto own = [](Json more) {
    more["model"] = "self";
    more["draw"] = "own";
    return plugin("specd.drafter.draft_target", std::move(more));
  };
  const Json tree = {{"branches", 2}, {"nodes", 8}};
  o.routes = {law_route("law", lookup(5), 5),
              route("match", lookup(5), 5),
              law_route("rejection", own(Json::object()), 4),
              law_route("block", own(Json::object()), 4, "block"),
              law_route("tree", own({{"tree", tree}}), 8, "tree_rejection"),
              law_route("typical", lookup(4), 4, "typical"),
              law_route("relaxed", lookup(4), 4, "relaxed")};
  for (RouteOptions& each : o.routes) {
    if (each.name == "typical" || each.name == "relaxed") each.guarantee = Guarantee::kNone;
  }
  start(o);
  std::vector<Request> plain, mixed;
  for (size_t i = 0; i < prompts().size(); ++i) {
    const size_t turn = i % (o.routes.size() + 1);
    const std::string name = turn == 0 ? "off" : o.routes[turn - 1].name;
    plain.push_back(request(prompts()[i], "off", 32));
    mixed.push_back(request(prompts()[i], name, 32));
  }
  const std::vector<Outcome> off = run_all(plain);
  expect_identical(run_all(mixed), off, "mixed");
  for (const RouteOptions& route : o.routes) {
    for (Request& each : plain) each.route = route.name;
    expect_identical(run_all(plain), off, route.name);
    EXPECT_GT(report(route.name).counts.accepted, 0u) << route.name;
    EXPECT_EQ(report(route.name).counts.cut, 0u) << report(route.name).last_problem;
  }
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
// with cuts, penalties and a bias in force, which the draft model does not have. It drafts with the
// target's noise, which a rule must not use again, and with its own.
TEST_F(Verifiers, follow_the_law_of_plain_decoding_in_mixed_batches) {
  EngineOptions o = options();
  o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
  const auto drafts = [](Json more) {
    more["model"] = "self";
    more["draft_tokens"] = 3;
    return plugin("specd.drafter.draft_target", std::move(more));
  };
  const Json tree = {{"branches", 2}, {"nodes", 6}},
             with = {{"branches", 2}, {"nodes", 6}, {"replacement", true}};
  o.routes = {law_route("target_noise", drafts(Json::object()), 3),
              law_route("rejection", drafts({{"draw", "own"}}), 3),
              law_route("block", drafts({{"draw", "own"}}), 3, "block"),
              law_route("without", drafts({{"draw", "own"}, {"tree", tree}}), 6, "tree_rejection"),
              law_route("with", drafts({{"draw", "own"}, {"tree", with}}), 6, "tree_rejection")};
  start(o);
  std::vector<std::string> names = {"off"};
  for (const RouteOptions& each : o.routes) names.push_back(each.name);
  // With 700 seeds a distance of 0.2 shows, with 20,000 one of 0.04.
  const uint64_t n_seeds = std::getenv("SPECD_NIGHTLY") == nullptr ? 700 : 20000;
  const std::string prompt = prompts()[2];
  std::map<std::string, Counts> counted;
  for (uint64_t begin = 0; begin < n_seeds; begin += 20) {
    std::vector<Request> requests;
    for (uint64_t seed = begin; seed < begin + 20; ++seed) {
      for (const std::string& name : names) {
        Request r =
            request(prompt, name, 6, 1.2f, names.size() * seed + requests.size() % names.size());
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
      counted[names[i % names.size()]][{tokens.begin() + 1, tokens.begin() + 4}] += 1;
    }
  }
  for (const RouteOptions& each : o.routes) {
    const RouteReport seen = report(each.name);
    ASSERT_GE(seen.counts.accepted_at.size(), 3u);
    for (size_t depth = 0; depth < 3; ++depth)
      EXPECT_GT(seen.counts.accepted_at[depth], 10u) << each.name << ", " << depth;
    EXPECT_GT(seen.counts.rejected, n_seeds / 10) << each.name;
    EXPECT_EQ(seen.counts.cut, 0u) << seen.last_problem;
    EXPECT_GE(same_law_p(counted[each.name], counted["off"]), 1e-4 / 5) << each.name;
  }
}

// The randomised probability integral transform: by the model's own probabilities of the tokens that it
// could have drawn instead, each token of a text is a number, and these are uniform. A token outside
// the 20 most likely ones is somewhere in the rest.
TEST_F(Verifiers, follow_the_law_of_the_model_over_its_whole_vocabulary) {
  constexpr size_t kBins = 50;
  constexpr int32_t kTokens = 50, kTop = 20;
  EngineOptions o = options("pico-target");
  o.draft_models = {{.name = "draft", .path = options().model.path, .kv_dtype = KvDType::kF32}};
  const auto drafts = [](Json more) {
    more["model"] = "draft";
    more["draft_tokens"] = 4;
    return plugin("specd.drafter.draft_target", std::move(more));
  };
  const Json tree = {{"branches", 3}, {"nodes", 8}},
             with = {{"branches", 3}, {"nodes", 8}, {"replacement", true}};
  o.routes = {law_route("likely", drafts({{"draw", "most_likely"}}), 4),
              law_route("rejection", drafts({{"draw", "own"}}), 4),
              law_route("block", drafts({{"draw", "own"}}), 4, "block"),
              law_route("without", drafts({{"draw", "own"}, {"tree", tree}}), 8, "tree_rejection"),
              law_route("with", drafts({{"draw", "own"}, {"tree", with}}), 8, "tree_rejection")};
  start(o);
  std::vector<std::string> names = {"off"};
  for (const RouteOptions& each : o.routes) names.push_back(each.name);
  const size_t n_texts = std::getenv("SPECD_NIGHTLY") != nullptr ? 4000 : 12;
  std::map<std::string, std::vector<double>> counted;
  std::mt19937_64 random(7);
  for (size_t begin = 0; begin < n_texts; begin += 4) {
    std::vector<Request> requests;
    for (size_t text = begin; text < begin + 4; ++text) {
      for (const std::string& name : names) {
        const uint64_t seed = names.size() * text + requests.size() % names.size();
        requests.push_back(request(prompts()[text % prompts().size()], name, kTokens, 1.0f, seed));
        requests.back().logprobs = kTop;
      }
    }
    const std::vector<Outcome> outcomes = run_all(requests);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const Logprobs& logprobs = outcomes[i].logprobs;
      ASSERT_EQ(logprobs.token.size(), size_t{kTokens});
      std::vector<double>& bins = counted[names[i % names.size()]];
      bins.resize(kBins);
      for (size_t token = 0; token < size_t{kTokens}; ++token) {
        double below = 0, mass = -1;
        for (size_t k = token * kTop; k < (token + 1) * kTop && mass < 0; ++k) {
          const double p = std::exp(double{logprobs.top[k]});
          if (logprobs.top_token[k] == outcomes[i].tokens[token]) mass = p;
          if (mass < 0) below += p;
        }
        if (mass < 0) mass = std::max(0.0, 1 - below);
        const double u = below + mass * std::uniform_real_distribution<double>()(random);
        bins[std::min(kBins - 1, static_cast<size_t>(u * double{kBins}))] += 1;
      }
    }
  }
  const double expected = static_cast<double>(n_texts) * kTokens / double{kBins};
  for (const std::string& name : names) {
    double x2 = 0;
    for (const double n : counted[name]) x2 += (n - expected) * (n - expected) / expected;
    const double p = chi_square_tail(x2, int{kBins} - 1);
    EXPECT_GE(p, 1e-4 / 6) << name;
    std::cout << "  " << name << ": p = " << p << " over " << n_texts * kTokens << " tokens\n";
    if (name == "off") continue;
    EXPECT_GT(report(name).counts.accepted, 0u) << name;
    EXPECT_GT(report(name).counts.rejected, 0u) << name;
    EXPECT_EQ(report(name).counts.cut, 0u) << report(name).last_problem;
  }
}

// Which the law of the text does not show.
TEST_F(Verifiers, rejection_accepts_as_often_as_the_distributions_overlap) {
  const bool is_full = std::getenv("SPECD_NIGHTLY") != nullptr;
  EngineOptions o = options("pico-target");
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  o.draft_models = {{.name = "draft", .path = options().model.path, .kv_dtype = KvDType::kF32}};
  o.routes = {law_route("law",
                        plugin("specd.drafter.draft_target",
                               {{"model", "draft"}, {"draft_tokens", 4}, {"draw", "own"}}),
                        4)};
  o.routes[0].verifier = plugin("specd.test.verifier_acceptance");
  const bool is_fake = std::getenv("SPECD_TEST_DEVICE") != nullptr;  // slow
  for (const float temperature : {1.0f, 0.7f, 1.3f}) {
    if (is_fake && temperature != 1) break;
    start(o);
    std::vector<Request> requests;
    for (size_t i = 0; i < (is_full ? 40u : is_fake ? 3u : 8u); ++i) {
      const std::string prompt = prompts()[i % prompts().size()];
      requests.push_back(request(prompt, "law", is_full ? 128 : 40, temperature, i));
    }
    for (const Outcome& outcome : run_all(requests)) EXPECT_TRUE(outcome.error.ok());
    std::map<std::string, double> counted;
    for (const MetricFamily& each : engine_->metrics()) {
      if (!each.series.empty()) counted[each.name] = each.series[0].value;
    }
    for (int depth = 0; depth < 4; ++depth) {
      const auto of = [&](const std::string& what) {
        return counted.at("specd_plugin_metric_" + what + std::to_string(depth) + "_total");
      };
      ASSERT_GT(of("reached"), 5) << depth;
      EXPECT_NEAR(of("accepted"), of("overlap"), 4 * std::sqrt(of("variance")) + 1e-6)
          << "of " << of("reached") << " at depth " << depth << ", temperature " << temperature;
      std::cout << "  temperature " << temperature << ", depth " << depth + 1 << ": "
                << of("accepted") / of("reached") << " of " << of("reached")
                << " accepted, overlap " << of("overlap") / of("reached") << "\n";
    }
  }
}

// Without a verifier that wants to know, own draws are drafts like any others.
TEST_F(Verifiers, drafts_of_any_rule_keep_the_text_under_match) {
  EngineOptions o = options();
  o.draft_models = {{.name = "self", .path = o.model.path, .kv_dtype = KvDType::kF32}};
  const Json tree = {{"branches", 3}, {"nodes", 9}};
  o.routes = {
      route("chain", plugin("specd.drafter.draft_target", {{"model", "self"}, {"draw", "own"}}), 4),
      route("tree",
            plugin("specd.drafter.draft_target",
                   {{"model", "self"}, {"draw", "own"}, {"draft_tokens", 3}, {"tree", tree}}),
            9)};
  start(o);
  for (const float temperature : {0.0f, 0.9f}) {
    std::vector<Request> plain, mixed;
    for (size_t i = 0; i < prompts().size(); ++i) {
      plain.push_back(request(prompts()[i], "off", 24, temperature, 7 + i));
      mixed.push_back(request(prompts()[i], i % 2 == 0 ? "chain" : "tree", 24, temperature, 7 + i));
    }
    expect_identical(run_all(mixed), run_all(plain), "own draws");
  }
  for (const char* name : {"chain", "tree"}) {
    EXPECT_GT(report(name).counts.accepted, 40u);
    EXPECT_EQ(report(name).counts.cut, 0u) << report(name).last_problem;
  }
}

// What a drafter says that it has drawn from is not believed.
TEST_F(Verifiers, a_q_that_cannot_be_costs_the_draft_and_is_named) {
  const std::map<std::string, std::string> words = {
      {"q_good", ""},
      {"q_unset", "row 0 of q, which has 0"},
      {"q_columns", "expected [.., vocab_size"},
      {"q_row", "node 0 is drawn from row 1 of q, which has 1"},
      {"q_row_negative", "node 0 is drawn from row -1 of q, which has 1"},
      {"q_nan", "is drawn from no distribution"},
      {"q_infinite", "is drawn from no distribution"},
      {"q_sum", "node 0 is drawn from no distribution: the logarithm of the sum is"},
      {"q_zero", "node 0 has token 1, which could not be drawn, by row 0 of q"}};
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  for (const auto& [mode, text] : words) {
    o.routes.push_back(law_route(
        mode, {.plugin = "specd.test.drafter_bad", .factory = "bad_q", .config = {{"mode", mode}}},
        4));
  }
  start(o);
  for (const auto& [mode, text] : words) {
    std::vector<Request> requests, plain;
    for (size_t i = 0; i < 4; ++i) {
      requests.push_back(request(prompts()[i], i % 2 == 0 ? mode : "off", 12, i < 2 ? 0 : 0.9f, i));
      plain.push_back(request(prompts()[i], "off", 12, i < 2 ? 0 : 0.9f, i));
    }
    const std::vector<Outcome> outcomes = run_all(requests), off = run_all(plain);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(outcomes[i].finish, FinishReason::kLength) << mode;
      EXPECT_EQ(outcomes[i].tokens.size(), 12u) << mode;
      if (i != 2) {
        EXPECT_EQ(outcomes[i].tokens, off[i].tokens) << mode << ": greedy, or a neighbour";
      }
    }
    const RouteReport seen = report(mode);
    EXPECT_EQ(seen.counts.cut > 0, mode != "q_good") << seen.last_problem;
    EXPECT_EQ(seen.counts.drafted > 0, mode == "q_good");
    EXPECT_NE(seen.last_problem.find(text), std::string::npos) << mode << ": " << seen.last_problem;
  }
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
  const auto expect_words = [&](const std::string& name, const std::string& words) {
    EXPECT_NE(report(name).refused.to_string().find(words), std::string::npos)
        << report(name).refused.to_string();
  };
  expect_words("more", "with this drafter these do: specd.verifier.match");
  expect_words("tree", "which the verifier does not judge");
  expect_words("tree",
               "with this drafter these do: specd.verifier.match, specd.verifier.tree_rejection");
}

}  // namespace
}  // namespace specd
