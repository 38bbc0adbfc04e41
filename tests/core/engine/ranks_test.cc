// An engine whose ranks share the model: what trained heads draft, what is refused, and how it ends.
// identity_matrix_test.cc compares texts over all other drafters.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/core/engine_rig.h"
#include "tests/core/family_models.h"

namespace specd {
namespace {

class Ranks : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (options().devices.front() != "cpu") GTEST_SKIP() << "ranks need the CPU";
  }
  static std::string zoo(const std::string& name) {
    return std::string(SPECD_TEST_ZOO) + "/" + name;
  }
};

// They read hidden states and, some, multiply by the target's output head, which no rank has whole.
TEST_F(Ranks, trained_heads_draft_the_same_for_one_rank_and_for_several) {
  std::vector<RouteOptions> routes;
  const auto add = [&](const std::string& name, const std::string& drafter, const std::string& head,
                       Json config, int32_t nodes) {
    config["weights"] = zoo("pico-" + head);
    routes.push_back(route(name, plugin("specd.drafter." + drafter, std::move(config)), nodes));
  };
  const Json dynamic = {{"total_token", 17}, {"depth", 4}, {"top_k", 4}};
  add("eagle3", "eagle3", "eagle3", dynamic, 16);
  add("eagle2", "eagle", "eagle2", dynamic, 16);
  add("chain", "eagle", "eagle2", {{"mode", "chain"}, {"draft_tokens", 3}}, 3);
  add("medusa", "medusa", "medusa", Json::object(), 20);
  add("redrafter", "redrafter", "redrafter", Json::object(), 20);
  std::vector<Outcome> plain;
  std::map<std::string, std::vector<uint64_t>> counts;
  for (const auto& [n_ranks, n_stages] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {2, 1}, {2, 2}}) {
    EngineOptions o = options("pico-target");
    o.tensor_parallel_size = n_ranks;
    o.pipeline_parallel_size = n_stages;
    o.max_sequences = 4;
    o.routes = routes;
    start(o);
    const auto requests = [](const std::string& route_name) {
      std::vector<Request> all;
      for (size_t i = 0; i < 3; ++i) {
        all.push_back(request(prompts()[i], route_name, 24));
        all.push_back(request(prompts()[i], route_name, 24, 0.8f, 77));
      }
      return all;
    };
    if (plain.empty()) plain = run_all(requests("off"));
    for (const RouteOptions& each : routes) {
      const std::string what =
          each.name + " on " + std::to_string(n_stages) + " stages of " + std::to_string(n_ranks);
      ASSERT_EQ(report(each.name).state, RouteState::kLive)
          << report(each.name).refused.to_string();
      expect_identical(run_all(requests(each.name)), plain, what);
      const RouteReport seen = report(each.name);
      EXPECT_EQ(seen.counts.lost, 0u) << what << ": " << seen.last_problem;
      EXPECT_GT(seen.counts.accepted, 0u) << what;
      const std::vector<uint64_t> now = {seen.counts.drafted, seen.counts.accepted};
      EXPECT_EQ(counts.emplace(each.name, now).first->second, now) << what;
    }
    audit();
  }
}

// The zoo's has three heads.
TEST_F(Ranks, a_draft_model_that_two_ranks_cannot_share_drafts_on_the_lead) {
  EngineOptions o = options("pico-target");
  o.draft_models = {{.name = "draft", .path = zoo("pico-draft"), .kv_dtype = KvDType::kF32}};
  o.routes = {route(
      "draft", plugin("specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 3}}), 3)};
  std::map<int32_t, std::vector<Outcome>> texts;
  std::map<int32_t, uint64_t> accepted;
  for (const int32_t n_ranks : {1, 2}) {
    o.tensor_parallel_size = n_ranks;
    start(o);
    texts[n_ranks] =
        run_all({request(prompts()[0], "draft", 40), request(prompts()[1], "draft", 40)});
    accepted[n_ranks] = report("draft").counts.accepted;
  }
  expect_identical(texts[2], texts[1], "two ranks");
  EXPECT_EQ(accepted[2], accepted[1]);
}

// The draft model is the target itself, so that it is often right.
TEST_F(Ranks, a_draft_model_that_they_share_drafts_the_same) {
  const std::string folder = family_folder(folder_, "llama31");
  std::map<std::string, std::vector<uint64_t>> counts;
  for (const int32_t n_ranks : {1, 2, 4}) {
    EngineOptions o = options();
    o.model.path = folder;
    o.draft_models = {{.name = "draft", .path = folder, .kv_dtype = KvDType::kF32}};
    o.tensor_parallel_size = n_ranks;
    o.max_sequences = 4;
    const auto draft = [](Json more) {
      more["model"] = "draft";
      more["draft_tokens"] = 4;
      return plugin("specd.drafter.draft_target", std::move(more));
    };
    o.routes = {route("chain", draft(Json::object()), 4),
                route("tree", draft({{"tree", {{"branches", 3}, {"nodes", 10}}}}), 10)};
    start(o);
    for (const char* name : {"chain", "tree"}) {
      ASSERT_EQ(report(name).state, RouteState::kLive) << report(name).refused.to_string();
      std::vector<Request> all;
      for (size_t i = 0; i < 4; ++i) {
        Request r = request("", name, 40, i % 2 == 0 ? 0 : 0.8f, 5);
        r.prompt_tokens.emplace(20 + 7 * i, static_cast<int32_t>(60 + i));
        r.ignore_eos = true;
        all.push_back(r);
      }
      // One after the other: then the drafts do not depend on how requests meet.
      for (const Request& each : all) run(each);
      const RouteReport seen = report(name);
      EXPECT_EQ(seen.counts.lost, 0u) << seen.last_problem;
      EXPECT_GT(seen.counts.accepted, 0u);
      const std::vector<uint64_t> now = {seen.counts.drafted, seen.counts.accepted};
      EXPECT_EQ(counts.emplace(name, now).first->second, now)
          << name << " on " << n_ranks << " ranks";
    }
    EXPECT_EQ(engine_->model().kv_bytes % static_cast<uint64_t>(n_ranks), 0u);
    audit();
  }
}

TEST_F(Ranks, report_what_all_of_them_hold) {
  EngineOptions o = options("pico-target");
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = 50;
  start(o);
  const ModelReport one = engine_->model();
  const int32_t threads = engine_->status().threads;
  o.tensor_parallel_size = 2;
  start(o);
  const ModelReport two = engine_->model();
  EXPECT_EQ(two.kv_bytes, one.kv_bytes);
  EXPECT_EQ(two.parameters, one.parameters);
  EXPECT_EQ(engine_->status().threads, threads);
  // Norms and the embedding are on both.
  EXPECT_GE(two.weight_bytes, one.weight_bytes);
  EXPECT_LT(two.weight_bytes, 2 * one.weight_bytes);
}

// Of the zoo the draft model is on the lead alone; of the family all ranks of the last stage have it.
TEST_F(Ranks, hold_what_was_planned_from_the_headers) {
  const std::string folder = family_folder(folder_, "llama31");
  for (const bool is_shared : {false, true}) {
    for (const auto& [n_ranks, n_stages] :
         std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
      EngineOptions o = options("pico-target");
      if (is_shared) o.model.path = folder;
      o.draft_models = {{.name = "draft",
                         .path = is_shared ? folder : zoo("pico-draft"),
                         .kv_dtype = KvDType::kBF16}};
      o.tensor_parallel_size = n_ranks;
      o.pipeline_parallel_size = n_stages;
      const Result<MemoryPlan> plan = check_options(o);
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      start(o);
      const std::vector<MemoryLine> held = engine_->memory();
      ASSERT_EQ(plan.value().lines.size(), held.size());
      for (size_t i = 0; i < held.size(); ++i) {
        const MemoryPlan::Line& line = plan.value().lines[i];
        EXPECT_EQ(line.what, held[i].what);
        ASSERT_EQ(line.bytes.size(), static_cast<size_t>(n_ranks * n_stages));
        EXPECT_EQ(std::accumulate(line.bytes.begin(), line.bytes.end(), uint64_t{0}), held[i].bytes)
            << line.what << " on " << n_stages << " stages of " << n_ranks;
      }
      // The lead's vocabulary in float32 is nobody else's.
      const std::vector<uint64_t>& activations = plan.value().lines[2].bytes;
      EXPECT_EQ(std::max_element(activations.begin(), activations.end()), activations.begin());
    }
  }
}

TEST_F(Ranks, that_the_model_does_not_allow_are_refused_with_the_key) {
  EngineOptions o = options("pico-target");
  const auto why = [&] { return Engine::create(o, {}).status().to_string(); };
  o.tensor_parallel_size = 4;
  EXPECT_EQ(why(),
            "INVALID_ARGUMENT: engine.tensor_parallel_size: 4 ranks cannot share this model: its "
            "num_attention_heads, 6, is no multiple of it");
  o.tensor_parallel_size = 3;
  EXPECT_EQ(why(),
            "INVALID_ARGUMENT: engine.tensor_parallel_size: 3 ranks cannot share this model: "
            "expected 1, 2, 4 or 8");
  o.tensor_parallel_size = 2;
  o.pipeline_parallel_size = 9;
  EXPECT_EQ(why(),
            "INVALID_ARGUMENT: engine.pipeline_parallel_size: expected 1 to the model's "
            "num_hidden_layers, 8, found 9");
  EXPECT_EQ(check_options(o).status().to_string(), why()) << "specd check says the same";
  o.pipeline_parallel_size = 0;
  EXPECT_EQ(check_limits(o).field(), "engine.pipeline_parallel_size");
  o.pipeline_parallel_size = 1;
  o.devices = {"cuda:0"};
  EXPECT_EQ(why(),
            "INVALID_ARGUMENT: engine.tensor_parallel_size: expected 1 on cuda:0 (ranks need cpu), "
            "found 2");
}

// Weights that are cut behind what the headers say are found before any rank computes.
TEST_F(Ranks, a_model_that_no_rank_can_load_is_refused_and_leaves_no_thread) {
  EngineOptions o = options();
  o.model.path = family_folder(folder_, "llama2");
  std::filesystem::resize_file(o.model.path + "/model.safetensors", 5000);
  o.tensor_parallel_size = 2;
  const Status status = Engine::create(o, {}).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), "model.path") << status.to_string();
  EXPECT_EQ(status.message().find("rank 0: "), 0u) << status.to_string();
}

}  // namespace
}  // namespace specd
