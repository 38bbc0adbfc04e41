// Draft-target speculation through the whole engine: a second model, its KV in the target's pages,
// the plugin that feeds it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

constexpr int32_t kDraftTargetTokens = 24;

class DraftTargets : public EngineTest {
 protected:
  static EngineOptions target_and_draft(const std::string& target = "pico-target",
                                        const std::string& draft = "pico-draft") {
    EngineOptions o = options(target);
    o.draft_models = {{.name = "draft",
                       .path = std::string(SPECD_TEST_ZOO) + "/" + draft,
                       .kv_dtype = KvDType::kF32}};
    return o;
  }
  static RouteOptions draft_route(const std::string& name, int32_t k, Json more = Json::object()) {
    more["model"] = more.value("model", "draft");
    more["draft_tokens"] = k;
    return route(name, plugin("specd.drafter.draft_target", std::move(more)), k);
  }
  static RouteOptions tree_route(const std::string& name, int32_t depth, int32_t branches,
                                 int32_t nodes, Json more = Json::object()) {
    more["tree"] = {{"branches", branches}, {"nodes", nodes}};
    RouteOptions made = draft_route(name, depth, std::move(more));
    made.draft_nodes_max = nodes;
    return made;
  }
  // Greedy and seeded requests of every other prompt: the larger model is slow under sanitizers.
  static std::vector<Request> requests(const std::string& route_name,
                                       int32_t max_tokens = kDraftTargetTokens) {
    std::vector<Request> all;
    for (size_t i = 0; i < prompts().size(); i += 2) {
      const std::string prompt = prompts()[i];
      all.push_back(request(prompt, route_name, max_tokens));
      all.push_back(request(prompt, route_name, max_tokens, 0.8f, 1234));
    }
    return all;
  }
  ModelReport draft_report() { return engine_->draft_models().at(0); }
};

TEST_F(DraftTargets, no_setting_changes_a_token) {
  EngineOptions o = target_and_draft();
  for (const int32_t k : {1, 8}) o.routes.push_back(draft_route("k" + std::to_string(k), k));
  o.routes.push_back(draft_route("careful", 6, {{"p_min", 0.6}}));
  o.routes.push_back(draft_route("own_choice", 4, {{"draw", "most_likely"}}));
  o.routes.push_back(draft_route("small_chunks", 4, {{"prefill_chunk", 64}}));
  o.routes.push_back(tree_route("tree", 4, 3, 14));
  o.routes.push_back(tree_route("wide_tree", 3, 8, 24, {{"draw", "most_likely"}}));
  // As configs/without_training.yaml has it: the model drafts where the suffix has nothing to say.
  o.routes.push_back(
      route("cascade",
            plugin("specd.drafter.cascade",
                   {{"drafters",
                     {{{"plugin", "specd.drafter.suffix"}, {"config", Json::object()}},
                      {{"plugin", "specd.drafter.draft_target"},
                       {"config", {{"model", "draft"}, {"draft_tokens", 4}}}}}},
                    {"min_nodes", {2}}}),
            8));
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  for (const RouteOptions& each : o.routes) {
    expect_identical(run_all(requests(each.name)), plain, each.name);
    const RouteReport r = report(each.name);
    EXPECT_GT(r.counts.accepted, 0u) << each.name;
    EXPECT_GT(r.counts.rejected, 0u) << each.name << ": the models differ";
    EXPECT_EQ(r.counts.cut, 0u) << each.name << ": " << r.last_problem;
    EXPECT_EQ(r.counts.lost, 0u) << each.name << ": " << r.last_problem;
  }
  EXPECT_GT(draft_report().rows, 0u);
  audit();
  EXPECT_EQ(draft_report().kv_pages_held, 0);
}

// The law of the method: a model that drafts for itself is always right, and every draft position
// is reached, over hundreds of rounds. One token missed in its context would show.
TEST_F(DraftTargets, a_model_that_drafts_for_itself_is_always_right) {
  constexpr int32_t kLong = 200;
  EngineOptions o = target_and_draft("pico-draft", "pico-draft");
  for (const int32_t k : {1, 4, 7}) {
    o.routes.push_back(draft_route("k" + std::to_string(k), k, {{"prefill_chunk", 4096}}));
  }
  start(o);
  for (const int32_t k : {1, 4, 7}) {
    const std::string name = "k" + std::to_string(k);
    std::vector<Request> all = requests(name, kLong);
    Request cut = request(prompts()[1], name, kLong, 0.8f, 99);
    cut.sampling.top_p = 0.9f;
    cut.sampling.top_k = 40;
    all.push_back(cut);
    int64_t rounds = 0;
    for (const Outcome& outcome : run_all(all)) {
      EXPECT_EQ(outcome.usage.accepted_tokens, outcome.usage.draft_tokens) << name;
      // The prompt's last row gives one token, every later step 1 + k.
      EXPECT_EQ(outcome.usage.steps, 1 + (kLong - 1 + k) / (k + 1)) << name;
      rounds += outcome.usage.steps;
    }
    EXPECT_GT(rounds, 200) << name;
  }
}

// The same of trees: the model's own draw is always among the children, and nodes that pass it are
// never fed again.
TEST_F(DraftTargets, a_tree_of_a_model_that_drafts_for_itself_is_accepted_to_its_depth) {
  constexpr int32_t kLong = 120;
  EngineOptions o = target_and_draft("pico-draft", "pico-draft");
  // So many nodes that the draw's path is among them whatever it is.
  o.routes = {tree_route("t", 3, 4, 84, {{"prefill_chunk", 4096}})};
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off", kLong));
  const std::vector<Outcome> outcomes = run_all(requests("t", kLong));
  expect_identical(outcomes, plain, "t");
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const bool greedy = i % 2 == 0;
    const int64_t least = 1 + (kLong - 1 + 3) / 4;
    if (greedy) {
      EXPECT_EQ(outcomes[i].usage.steps, least);
    }
    // A draw that is far from likely may be beaten by other paths.
    EXPECT_LE(outcomes[i].usage.steps, least + least / 4) << i;
  }
}

// With equal budgets a tree covers more than a chain where the models disagree.
TEST_F(DraftTargets, a_tree_is_accepted_deeper_than_a_chain_of_its_depth) {
  EngineOptions o = target_and_draft();
  o.routes = {draft_route("chain", 4), tree_route("tree", 4, 3, 24)};
  start(o);
  std::vector<Request> greedy_requests[2];
  for (size_t i = 0; i < 3; ++i) {
    greedy_requests[0].push_back(request(prompts()[i], "chain", 64));
    greedy_requests[1].push_back(request(prompts()[i], "tree", 64));
  }
  int64_t steps[2] = {0, 0};
  for (int which = 0; which < 2; ++which) {
    for (const Outcome& outcome : run_all(greedy_requests[which]))
      steps[which] += outcome.usage.steps;
  }
  EXPECT_LT(steps[1], steps[0]);
}

TEST_F(DraftTargets, two_routes_share_one_draft_model) {
  EngineOptions o = target_and_draft();
  o.routes = {draft_route("a", 2), draft_route("b", 5)};
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  std::vector<Request> mixed = requests("a");
  for (size_t i = 0; i < mixed.size(); ++i)
    mixed[i].route = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "off";
  expect_identical(run_all(mixed), plain, "mixed");
  EXPECT_GT(report("a").counts.accepted, 0u);
  EXPECT_GT(report("b").counts.accepted, 0u);
}

// The cache holds hardly more than what runs: draft KV goes when a request waits for its pages, and
// comes back by feeding the text again.
TEST_F(DraftTargets, draft_kv_gives_way_when_pages_are_short) {
  EngineOptions o = target_and_draft();
  o.max_sequences = 8;
  o.routes = {draft_route("d", 4)};
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  const ModelReport target = engine_->model();
  for (const ModelReport& model : {target, draft_report()}) {
    EXPECT_EQ(model.weight_format, "bf16");
    EXPECT_EQ(model.weight_bits, 16);
  }
  const uint64_t page_bytes = target.kv_bytes / static_cast<uint64_t>(target.kv_pages_total);
  // A request takes up to 7 pages, its draft KV one.
  uint64_t rows_ample = 0;
  for (const uint64_t pages : {400u, 9u}) {
    o.model.kv_bytes_max = pages * page_bytes;
    start(o);
    ASSERT_EQ(engine_->model().kv_pages_total, static_cast<int32_t>(pages));
    expect_identical(run_all(requests("d")), plain, std::to_string(pages) + " pages");
    EXPECT_GT(report("d").counts.accepted, 0u) << pages;
    if (pages == 400u) rows_ample = draft_report().rows;
    if (pages == 9u) {
      EXPECT_NE(draft_report().rows, rows_ample) << "pages were never short";
    }
    audit();
    EXPECT_EQ(draft_report().kv_pages_held, 0);
  }
}

TEST_F(DraftTargets, cancelled_requests_give_their_draft_kv_back) {
  EngineOptions o = target_and_draft();
  o.routes = {draft_route("d", 4)};
  start(o);
  std::vector<Pending> pending;
  for (int i = 0; i < 4; ++i) {
    Request r = request(prompts()[static_cast<size_t>(i)], "d", 1000);
    r.id = "r" + std::to_string(i);
    pending.push_back(submit_slow(r));
  }
  for (Pending& each : pending) each.wait_for_tokens(8);
  EXPECT_GT(draft_report().kv_pages_held, 0);
  for (int i = 0; i < 4; ++i) engine_->cancel("r" + std::to_string(i));
  for (Pending& each : pending) EXPECT_EQ(each.wait().finish, FinishReason::kCancelled);
  audit();
  EXPECT_EQ(draft_report().kv_pages_held, 0);
}

// The draft model of the zoo with another configuration or other weights.
TEST_F(DraftTargets, a_poor_draft_model_costs_drafts_and_no_token) {
  const std::string good = std::string(SPECD_TEST_ZOO) + "/pico-draft";
  const auto variant = [&](const std::string& name, const auto& edit_config,
                           const auto& edit_weights) {
    const std::string folder = folder_ + "/" + name;
    std::filesystem::copy(good, folder);
    Json config = parse_json_file(good + "/config.json", 1 << 20).value();
    edit_config(config);
    std::ofstream(folder + "/config.json") << config.dump();
    std::ifstream in(good + "/model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    edit_weights(bytes, static_cast<size_t>(header) + sizeof(header));
    std::ofstream(folder + "/model.safetensors", std::ios::binary) << bytes;
    return folder;
  };
  const auto same_config = [](Json&) {};
  const auto same_weights = [](std::string&, size_t) {};
  EngineOptions o = target_and_draft();
  const auto add = [&](const std::string& name, const std::string& folder) {
    o.draft_models.push_back({.name = name, .path = folder, .kv_dtype = KvDType::kF32});
    o.routes.push_back(draft_route(name, 4, {{"model", name}}));
  };
  add("short", variant(
                   "short", [](Json& c) { c["max_position_embeddings"] = 40; }, same_weights));
  add("garbage", variant("garbage", same_config, [](std::string& bytes, size_t at) {
        // Every bf16 weight gets a sign by chance.
        uint32_t coin = 1;
        for (++at; at < bytes.size(); at += 2) {
          coin = coin * 1664525 + 1013904223;
          if ((coin >> 31) != 0) bytes[at] = static_cast<char>(bytes[at] ^ 0x80);
        }
      }));
  add("not_a_number", variant("not_a_number", same_config, [](std::string& bytes, size_t at) {
        std::fill(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end(), '\xff');
      }));
  start(o);
  const std::vector<Outcome> plain = run_all(requests("off"));
  for (const RouteOptions& each : o.routes) {
    ASSERT_EQ(report(each.name).state, RouteState::kLive) << report(each.name).refused.to_string();
    expect_identical(run_all(requests(each.name)), plain, each.name);
    const RouteReport r = report(each.name);
    EXPECT_EQ(r.counts.lost, 0u) << each.name << ": " << r.last_problem;
    EXPECT_EQ(r.counts.cut, 0u) << each.name << ": " << r.last_problem;
  }
  EXPECT_GT(report("short").counts.drafted, 0u) << "some prompts are shorter than its context";
  EXPECT_GT(report("garbage").counts.drafted, 0u);
  EXPECT_LT(report("garbage").counts.accepted * 10, report("garbage").counts.drafted);
  EXPECT_EQ(report("not_a_number").counts.drafted, 0u);
  audit();
  for (const ModelReport& model : engine_->draft_models()) EXPECT_EQ(model.kv_pages_held, 0);
}

TEST_F(DraftTargets, a_missing_model_refuses_its_routes_and_nothing_else) {
  EngineOptions o = target_and_draft();
  o.draft_models.push_back({.name = "gone", .path = folder_ + "/nothing"});
  o.routes = {draft_route("good", 2), draft_route("gone", 2, {{"model", "gone"}}),
              draft_route("unknown", 2, {{"model", "other"}})};
  start(o);
  EXPECT_EQ(report("good").state, RouteState::kLive);
  EXPECT_EQ(report("gone").state, RouteState::kRefused);
  EXPECT_NE(report("gone").refused.to_string().find("draft model 'gone' cannot be used: "),
            std::string::npos)
      << report("gone").refused.to_string();
  EXPECT_NE(report("unknown").refused.to_string().find(
                "no draft model is called 'other'; draft_models has draft, gone"),
            std::string::npos)
      << report("unknown").refused.to_string();
  EXPECT_TRUE(engine_->draft_models().at(0).refused.ok());
  EXPECT_FALSE(engine_->draft_models().at(1).refused.ok());
  EXPECT_FALSE(run(request(prompts()[2], "good", 8)).tokens.empty());
}

}  // namespace
}  // namespace specd
