// An engine whose ranks share the model: what trained heads draft, what is refused, and how it ends.
// identity_matrix_test.cc compares texts over all other drafters.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/device/host_memory.h"
#include "tests/core/engine_rig.h"
#include "tests/cpu_clock.h"
#include "tests/core/family_models.h"

namespace specd {
namespace {

class Ranks : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (!has_devices(4)) GTEST_SKIP() << "ranks need a device each";
  }
  static std::string zoo(const std::string& name) {
    return std::string(SPECD_TEST_ZOO) + "/" + name;
  }
};

class CpuRanks : public Ranks {
 protected:
  void SetUp() override {
    Ranks::SetUp();
    if (options().devices.front() != "cpu") GTEST_SKIP() << "of ranks that share one machine";
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
  const std::string folder = family_folder(folder_, "llama_bias");
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

// Of the zoo the draft model is on the lead alone, in the target's pages; of the family all ranks of the
// last stage have it, or the lead alone, where it needs pages of its own if the target is shared.
TEST_F(Ranks, hold_what_was_planned_from_the_headers) {
  const std::string folder = family_folder(folder_, "llama_bias");
  for (const std::string draft : {"zoo", "shared", "alone"}) {
    for (const auto& [n_ranks, n_stages] :
         std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
      EngineOptions o = options("pico-target");
      if (draft != "zoo") o.model.path = folder;
      o.draft_models = {{.name = "draft",
                         .path = draft == "zoo" ? zoo("pico-draft") : folder,
                         .kv_dtype = o.model.kv_dtype,
                         .tensor_parallel_size = draft == "alone" ? 1 : 0}};
      o.tensor_parallel_size = n_ranks;
      o.pipeline_parallel_size = n_stages;
      const std::string what =
          draft + " on " + std::to_string(n_stages) + " stages of " + std::to_string(n_ranks);
      const Result<MemoryPlan> plan = check_options(spread(o));
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      start(o);
      const std::vector<MemoryLine> held = engine_->memory();
      ASSERT_EQ(plan.value().lines.size(), held.size()) << what;
      for (size_t i = 0; i < held.size(); ++i) {
        const MemoryPlan::Line& line = plan.value().lines[i];
        EXPECT_EQ(line.what, held[i].what);
        EXPECT_EQ(line.detail.ends_with(" bits a weight"), line.what.starts_with("weights of "))
            << line.what;
        EXPECT_EQ(line.detail, held[i].detail);
        ASSERT_EQ(line.bytes.size(), static_cast<size_t>(n_ranks * n_stages));
        EXPECT_EQ(line.bytes, held[i].held) << line.what << ", " << what;
        EXPECT_EQ(line.bytes, held[i].planned) << line.what << ", " << what;
      }
      const bool has_own_pages =
          draft != "zoo" && (n_stages > 1 || (n_ranks > 1 && draft == "alone"));
      const size_t n_scratch = options().devices.front() == "cpu" ? 0 : 1;
      EXPECT_EQ(held.size(), (has_own_pages ? 7u : 6u) + n_scratch) << what;
      // The lead's vocabulary in float32 is nobody else's.
      const std::vector<uint64_t>& activations = plan.value().lines[1].bytes;
      EXPECT_EQ(std::max_element(activations.begin(), activations.end()), activations.begin());
    }
  }
}

// The draft model is the target itself: right at temperature 0, so that every draft is accepted.
TEST_F(Ranks, a_draft_model_on_the_lead_alone_drafts_in_pages_of_its_own) {
  const std::string folder = family_folder(folder_, "llama_bias");
  std::vector<Outcome> plain;
  uint64_t page_bytes = 0;
  for (const int32_t n_ranks : {1, 2, 4}) {
    EngineOptions o = options();
    o.model.path = folder;
    o.draft_models = {
        {.name = "draft", .path = folder, .kv_dtype = KvDType::kF32, .tensor_parallel_size = 1}};
    o.tensor_parallel_size = n_ranks;
    o.routes = {
        route("chain",
              plugin("specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 4}}), 4)};
    start(o);
    std::vector<Request> all;
    for (size_t i = 0; i < 6; ++i) {
      Request r = request("", "chain", 40, i % 2 == 0 ? 0 : 0.8f, 5);
      r.prompt_tokens.emplace(20 + 7 * i, static_cast<int32_t>(60 + i));
      r.ignore_eos = true;
      all.push_back(r);
    }
    const std::vector<Outcome> texts = run_all(all);
    if (plain.empty()) plain = texts;
    expect_identical(texts, plain, std::to_string(n_ranks) + " ranks");
    const RouteReport seen = report("chain");
    EXPECT_EQ(seen.counts.lost, 0u) << seen.last_problem;
    EXPECT_GT(seen.counts.accepted, 0u);
    const ModelReport draft = engine_->draft_models().at(0);
    EXPECT_EQ(draft.kv_pages_total, n_ranks == 1 ? 0 : engine_->model().kv_pages_total);
    const auto pages = static_cast<uint64_t>(engine_->model().kv_pages_total);
    if (n_ranks == 1) page_bytes = engine_->model().kv_bytes / pages;
    EXPECT_EQ(draft.kv_bytes, n_ranks == 1 ? 0 : pages * page_bytes) << "the same model, whole";
    EXPECT_EQ(draft.kv_pages_held, 0);
    audit();
  }
}

// What `specd check` says of the places of a draft model is what the engine has when it is there.
TEST_F(Ranks, get_the_pages_that_the_tightest_of_them_has_room_for) {
  const std::string folder = family_folder(folder_, "llama_bias");
  EngineOptions o = options();
  o.model.path = folder;
  o.model.kv_bytes_max = 0;
  o.max_sequences = 256;
  o.step_tokens_max = 256;
  o.tensor_parallel_size = 2;
  o.rank_bytes_max = uint64_t{9} << 20;
  const auto pages_of = [&](int32_t tensor_parallel_size) {
    o.draft_models.clear();
    if (tensor_parallel_size >= 0) {
      o.draft_models = {{.name = "draft",
                         .path = folder,
                         .kv_dtype = o.model.kv_dtype,
                         .tensor_parallel_size = tensor_parallel_size}};
    }
    start(o);
    uint64_t most = 0;
    for (size_t rank = 0; rank < 2; ++rank) {
      uint64_t bytes = 0, page = 0;
      for (const MemoryLine& line : engine_->memory()) {
        bytes += line.held[rank];
        if (line.what.starts_with("KV cache"))
          page += line.held[rank] / static_cast<uint64_t>(engine_->model().kv_pages_total);
      }
      EXPECT_LE(bytes, o.rank_bytes_max) << rank;
      most = std::max(most, bytes + page);
    }
    EXPECT_GT(most, o.rank_bytes_max) << "one more page does not fit";
    return engine_->model().kv_pages_total;
  };
  const int32_t shared = pages_of(2), alone = pages_of(1), elsewhere = pages_of(-1);
  EXPECT_EQ(pages_of(0), std::max(shared, alone)) << "the choice that leaves most";
  EXPECT_NE(alone, shared);
  EXPECT_LT(std::max(shared, alone), elsewhere);
  for (const int32_t wanted : {0, 1, 2}) {
    o.draft_models.front().tensor_parallel_size = wanted;
    const Result<MemoryPlan> plan = check_options(o);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    ASSERT_EQ(plan.value().placements.size(), 1u);
    const MemoryPlan::Placements& places = plan.value().placements.front();
    EXPECT_EQ(places.pages_shared, shared);
    EXPECT_EQ(places.pages_alone, alone);
    EXPECT_EQ(places.pages_elsewhere, elsewhere);
    EXPECT_EQ(places.is_shared, wanted == 2 || (wanted == 0 && shared > alone));
  }
  // Of several draft models each row is about one, with the others where they are.
  o.draft_models = {o.draft_models.front(), o.draft_models.front()};
  o.draft_models[1].name = "other";
  o.rank_bytes_max *= 2;
  const Result<MemoryPlan> two = check_options(o);
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  for (const MemoryPlan::Placements& each : two.value().placements) {
    EXPECT_EQ(each.is_shared ? each.pages_shared : each.pages_alone, two.value().kv_pages);
  }
}

// What a drafter may take is known only to its plugin, which is asked before weights are read.
TEST_F(CpuRanks, leave_room_for_what_the_drafters_of_the_routes_may_take) {
  EngineOptions o = options();
  o.model.path = family_folder(folder_, "llama_bias");
  o.model.kv_bytes_max = 0;
  o.max_sequences = 64;
  o.step_tokens_max = 256;
  o.tensor_parallel_size = 2;
  o.rank_bytes_max = uint64_t{9} << 20;
  const auto pool = [&](int64_t tokens) {
    const Json config = {
        {"max_matching_ngram_size", 1}, {"is_public_pool", true}, {"max_pool_tokens", tokens}};
    return route("pool", plugin("specd.drafter.prompt_lookup", config), 4);
  };
  const auto held = [&](size_t rank) {
    uint64_t bytes = 0;
    for (const MemoryLine& line : engine_->memory()) bytes += line.held[rank];
    return bytes;
  };
  int32_t all = 0;
  uint64_t without = 0;
  for (const int64_t tokens : {0, 1024, 8192}) {
    o.routes.clear();
    o.default_route = "off";
    if (tokens > 0) o.routes = {pool(tokens)};
    start(o);
    const int32_t pages = engine_->model().kv_pages_total;
    const uint64_t page = engine_->model().kv_bytes / static_cast<uint64_t>(pages) / 2;
    EXPECT_LE(held(0), o.rank_bytes_max);
    EXPECT_GT(held(0) + page, o.rank_bytes_max) << "one more page does not fit";
    const Result<MemoryPlan> plan = check_options(o);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    EXPECT_EQ(plan.value().kv_pages, pages) << "specd check says the same";
    if (tokens == 0) {
      all = pages;
      without = held(1);
      continue;
    }
    const uint64_t limit = report("pool").memory_bytes_max;
    EXPECT_GT(limit, static_cast<uint64_t>(tokens) * 12);
    EXPECT_NEAR(all - pages, static_cast<double>(limit) / static_cast<double>(page), 1);
    EXPECT_EQ(held(1), without - static_cast<uint64_t>(all - pages) * page) << "only on rank 0";
    const MemoryLine line = engine_->memory().back();
    EXPECT_EQ(line.what, "drafter of route pool (limit)");
    EXPECT_EQ(line.planned, line.held);
  }
  o.routes = {pool(1 << 20)};
  const Status status = Engine::create(o, {}).status();
  EXPECT_EQ(status, check_options(o).status());
  EXPECT_EQ(status.field(), "engine.rank_bytes_max");
  EXPECT_EQ(status.message().find("rank 0 needs "), 0u) << status.to_string();
  EXPECT_NE(status.message().find("; drafter of route pool (limit) "), std::string::npos)
      << status.to_string();
  // Without the plugin there is nothing to make room for.
  o.routes.front().drafter.plugin = "org.example.absent";
  start(o);
  EXPECT_EQ(engine_->model().kv_pages_total, all);
  EXPECT_EQ(report("pool").state, RouteState::kRefused);
}

// The shape of a checkpoint as a folder: a header and a hole where the weights would be.
std::string hollow_folder(const std::string& folder, const std::string& tokenizer, int32_t n_layers,
                          int64_t hidden, int64_t ffn, int64_t heads) {
  constexpr int64_t vocab = 128'256, head_dim = 128, kv_heads = 8;
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(tokenizer, folder + "/tokenizer.json");
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"torch_dtype", "bfloat16"},
                       {"hidden_act", "silu"},
                       {"bos_token_id", 0},
                       {"eos_token_id", 1},
                       {"vocab_size", vocab},
                       {"hidden_size", hidden},
                       {"intermediate_size", ffn},
                       {"num_hidden_layers", n_layers},
                       {"num_attention_heads", heads},
                       {"num_key_value_heads", kv_heads},
                       {"head_dim", head_dim},
                       {"max_position_embeddings", 131'072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 500'000.0},
                       {"tie_word_embeddings", false}};
  std::ofstream(folder + "/config.json") << config;
  Json header;
  uint64_t end = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const uint64_t begin = end;
    end += 2 * static_cast<uint64_t>(
                   std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
    header[name + ".weight"] = {
        {"dtype", "BF16"}, {"shape", std::move(shape)}, {"data_offsets", {begin, end}}};
  };
  add("model.embed_tokens", {vocab, hidden});
  for (int32_t i = 0; i < n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm", {hidden});
    add(layer + "post_attention_layernorm", {hidden});
    add(layer + "self_attn.q_proj", {heads * head_dim, hidden});
    add(layer + "self_attn.k_proj", {kv_heads * head_dim, hidden});
    add(layer + "self_attn.v_proj", {kv_heads * head_dim, hidden});
    add(layer + "self_attn.o_proj", {hidden, heads * head_dim});
    add(layer + "mlp.gate_proj", {ffn, hidden});
    add(layer + "mlp.up_proj", {ffn, hidden});
    add(layer + "mlp.down_proj", {hidden, ffn});
  }
  add("model.norm", {hidden});
  add("lm_head", {vocab, hidden});
  const std::string text = header.dump(), path = folder + "/model.safetensors";
  const uint64_t size = text.size();
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&size), 8) << text;
  std::filesystem::resize_file(path, 8 + size + end);
  return folder;
}

// Nothing but headers is there, so nothing but headers is read.
TEST_F(Ranks, of_a_target_of_70b_with_a_draft_of_8b_are_planned_in_less_than_a_second) {
  EngineOptions o = options();
  const std::string tokenizer = zoo("pico-target") + "/tokenizer.json";
  o.model.path = hollow_folder(folder_ + "/70b", tokenizer, 80, 8192, 28'672, 64);
  o.model.kv_dtype = KvDType::kBF16;
  o.model.kv_bytes_max = 0;
  o.draft_models = {
      {.name = "draft", .path = hollow_folder(folder_ + "/8b", tokenizer, 32, 4096, 14'336, 32)}};
  o.routes.clear();
  o.default_route = "off";
  o.tensor_parallel_size = 4;
  o.rank_bytes_max = 80'000'000'000;
  const auto begin = CpuClock::now();
  const Result<MemoryPlan> plan = check_options(o);
  EXPECT_LT(CpuClock::now() - begin, std::chrono::seconds(1) * kSlowdown);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const MemoryPlan::Placements& places = plan.value().placements.at(0);
  std::cout << "pages: shared " << places.pages_shared << ", on rank 0 alone " << places.pages_alone
            << ", elsewhere " << places.pages_elsewhere << std::endl;
  EXPECT_TRUE(places.is_shared);
  EXPECT_EQ(plan.value().kv_pages, places.pages_shared);
  // Bytes on each rank by hand, without activations (about 1 GB on rank 0). The embedding is whole
  // everywhere.
  const double of_target =
      2 * (128'256.0 * 8192 * 1.25 +
           80 * (2 * 8192.0 * 8192 + 2 * 1024.0 * 8192 + 3 * 28'672.0 * 8192) / 4);
  const double of_draft = 2 * (32 * (2 * 4096.0 * 4096 + 2 * 1024.0 * 4096 + 3 * 14'336.0 * 4096));
  const double embedding = 2 * 128'256.0 * 4096;
  const double page = 80 * 2 * 2 * 128 * 2 * 16, page_of_draft = 32 * 2 * 8 * 128 * 2 * 16;
  const auto near = [](int32_t pages, double expected) {
    EXPECT_NEAR(pages, expected, 0.05 * expected);
  };
  near(places.pages_elsewhere, (80e9 - of_target) / page);
  near(places.pages_shared, (80e9 - of_target - of_draft / 4 - embedding * 1.25) / page);
  near(places.pages_alone, (80e9 - of_target - of_draft - embedding * 2) / (page + page_of_draft));
}

TEST_F(CpuRanks, without_room_are_refused_before_weights_are_read) {
  EngineOptions o = options("pico-target");
  o.tensor_parallel_size = 2;
  o.model.kv_bytes_max = 0;
  o.rank_bytes_max = uint64_t{1} << 20;
  bool reads = false;
  const auto why = [&] {
    return Engine::create(o, [&](const std::string& what, double) { reads |= what != "plugins"; })
        .status();
  };
  for (const int32_t pages : {0, 50}) {
    o.model.kv_pages = pages;
    const Status status = why();
    EXPECT_EQ(status, check_options(o).status());
    EXPECT_EQ(status.code(), Code::kExhausted) << status.to_string();
    EXPECT_EQ(status.field(), "engine.rank_bytes_max");
    EXPECT_EQ(status.message().find("rank 0 needs "), 0u) << status.to_string();
    EXPECT_NE(status.message().find("weights of pico-target "), std::string::npos);
    EXPECT_NE(status.message().find(pages == 0 ? "KV cache, 1 pages" : "KV cache, 50 pages"),
              std::string::npos);
    EXPECT_NE(status.message().find("expected at most 1048576"), std::string::npos);
  }
  EXPECT_FALSE(reads);
  // Ranks of one process have what the machine has, whatever the limit of each.
  for (const uint64_t rank_bytes_max : {uint64_t{0}, uint64_t{1} << 50}) {
    o.rank_bytes_max = rank_bytes_max;
    o.model.kv_pages = 0;
    o.model.kv_bytes_max = uint64_t{1} << 50;
    o.model.kv_bytes_max -= rank_bytes_max == 0 ? 0 : o.model.kv_bytes_max / 2;
    const Status status = why();
    EXPECT_EQ(status.code(), Code::kExhausted) << status.to_string();
    EXPECT_EQ(status.field(), "model.kv.bytes_max");
    EXPECT_EQ(status.message().find("ranks 0, 1 need together "), 0u) << status.to_string();
    EXPECT_NE(status.message().find("), cpu has "), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find("; at most "), std::string::npos) << status.to_string();
    EXPECT_EQ(check_options(o).ok(), rank_bytes_max > 0) << "specd check plans for other machines";
  }
  EXPECT_FALSE(reads);
  // A share is of what there is, and weights come first.
  o.rank_bytes_max = 0;
  o.model.kv_bytes_max = 0;
  o.model.kv_memory_share = 1;
  const Result<MemoryPlan> all = check_options(o);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  uint64_t bytes = 0;
  for (const MemoryPlan::Line& line : all.value().lines) {
    bytes += std::accumulate(line.bytes.begin(), line.bytes.end(), uint64_t{0});
  }
  EXPECT_LE(bytes, host_memory().bytes);
  EXPECT_GT(bytes, host_memory().bytes / 100 * 99);
  o.model.kv_memory_share = 0;
  o.draft_models = {{.name = "draft", .path = zoo("pico-draft"), .tensor_parallel_size = 3}};
  EXPECT_EQ(why().to_string(),
            "INVALID_ARGUMENT: draft_models[0].tensor_parallel_size: expected 1, or the target's, "
            "2, found 3");
  o.draft_models.front().tensor_parallel_size = 2;
  EXPECT_EQ(check_options(o).status().to_string(),
            "INVALID_ARGUMENT: draft_models[0].tensor_parallel_size: draft: 2 ranks cannot share "
            "this model: its num_attention_heads, 3, is no multiple of it");
}

TEST_F(CpuRanks, that_the_model_does_not_allow_are_refused_with_the_key) {
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
  for (
      const auto& [devices, words] : std::vector<std::pair<std::vector<std::string>, std::string>>{
          {{"auto"},
           "devices[0]: expected cpu, or a cuda:N for each rank, because there are several, found auto"},
          {{"cuda:0", "cpu"}, "devices[1]: expected cuda:N, because there are several, found cpu"},
          {{"cuda:0", "cuda:0"}, "devices[1]: expected a device that is named once, found cuda:0"},
          {{"cuda:0", "cuda:1", "cuda:2"},
           "devices: expected one for each of the 2 ranks, or under mpirun for each rank of a "
           "machine, found 3"},
          {{"cuda:0"}, "devices: expected one for each of the 2 ranks of this machine, found 1"}}) {
    o.devices = devices;
    EXPECT_EQ(why(), "INVALID_ARGUMENT: " + words);
  }
}

// Weights that are cut behind what the headers say are found before any rank computes.
TEST_F(CpuRanks, a_model_that_no_rank_can_load_is_refused_and_leaves_no_thread) {
  EngineOptions o = options();
  o.model.path = family_folder(folder_, "llama2");
  std::filesystem::resize_file(o.model.path + "/model.safetensors", 5000);
  o.tensor_parallel_size = 2;
  const Status status = Engine::create(o, {}).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), "model.path") << status.to_string();
  EXPECT_NE(status.message().find(o.model.path + "/model.safetensors"), std::string::npos)
      << status.to_string();
}

}  // namespace
}  // namespace specd
