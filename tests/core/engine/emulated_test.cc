// The engine on the kernels of kernels/cuda, executed by an emulator (tests/device/emulated). Texts are
// those of plain decoding there, token by token, and those of the CPU up to choices so close that other
// bits decide them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda_device.h"
#include "tests/core/engine_rig.h"
#include "tests/core/family_models.h"
#include "tests/core/model/choice_gap.h"
#include "tests/core/model/safetensors_rig.h"
#include "tests/core/model_of_eight_heads.h"

namespace specd {
namespace {

constexpr float kCloseChoice = 5e-3f;
constexpr float kCloseFast = 0.2f;  // of logits with a spread of several

class Emulated : public EngineTest {
 protected:
  void SetUp() override {
    // Loaded here so that its thread and descriptors are part of what TearDown compares with.
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_EMULATED_CUDA, 0);  // tests/gpu names the real one
    const char* settings = std::getenv("SPECD_EMULATED_CUDA");
    const std::string more = settings == nullptr ? "" : std::string(settings) + ",";
    if (more.find("devices=") == std::string::npos) {
      setenv("SPECD_EMULATED_CUDA", (more + "devices=4").c_str(), 1);
    }
    ASSERT_TRUE(open_cuda_device(0, {}).ok());
    EngineTest::SetUp();
  }

  // `got` is `expected` up to the first choice that is close; those are listed.
  void expect_near(const std::vector<int32_t>& got, const std::vector<int32_t>& expected,
                   const Request& r, const std::string& what, float close = kCloseChoice) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    const auto [ours, theirs] = std::mismatch(got.begin(), got.end(), expected.begin());
    if (ours == got.end()) return;
    std::vector<int32_t> text =
        r.prompt_tokens ? *r.prompt_tokens : engine_->encode(r.prompt).value();
    text.insert(text.end(), got.begin(), ours);
    const auto gap = choice_gap(model_folder_, kv_, text, r.sampling.temperature.value_or(0),
                                r.sampling.seed.value_or(0), *theirs, *ours);
    ASSERT_TRUE(gap.ok()) << gap.status().to_string();
    std::printf("%s: token %td is %d, the CPU's %d by %.3g\n", what.c_str(), ours - got.begin(),
                *ours, *theirs, static_cast<double>(gap.value()));
    EXPECT_LT(std::abs(gap.value()), close) << what;
  }

  static void expect_whole(const std::vector<Outcome>& outcomes, int32_t n_tokens) {
    for (const Outcome& each : outcomes) {
      ASSERT_EQ(each.finish, FinishReason::kLength) << each.error.to_string();
      ASSERT_EQ(each.tokens.size(), static_cast<size_t>(n_tokens));
    }
  }

  // Prompts on every route, against plain decoding; then against the CPU.
  void expect_texts(const std::string& model, size_t n_prompts, int32_t n_tokens, float temperature,
                    KvDType kv, size_t first_prompt = 0) {
    std::vector<Request> plain;
    for (size_t i = first_prompt; i < first_prompt + n_prompts; ++i) {
      plain.push_back(request(prompts()[i], "off", n_tokens, temperature, 77));
    }
    EngineOptions o = options(model);
    model_folder_ = o.model.path;
    o.model.kv_dtype = kv;
    kv_ = kv;
    start(o);
    const std::vector<Outcome> on_cpu = run_all(plain);

    o.devices = {"cuda:0"};
    start(o);
    ASSERT_EQ(engine_->status().device.find("cuda:0"), 0u) << engine_->status().device;
    const std::vector<Outcome> whole = run_all(plain);
    expect_whole(whole, n_tokens);
    const std::string file = record(plain, whole);

    o.draft_models = {
        {.name = "draft", .path = std::string(SPECD_TEST_ZOO) + "/pico-draft", .kv_dtype = kv}};
    o.routes = {
        route("lookup", plugin("specd.drafter.prompt_lookup"), 4),
        route("draft",
              plugin("specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 3}}), 3),
        route("replay",
              plugin("specd.drafter.replay",
                     {{"file", file}, {"acceptance", 0.7}, {"draft_tokens", 4}}),
              4),
    };
    start(o);
    for (const char* name : {"off", "lookup", "draft", "replay"}) {
      std::vector<Request> routed = plain;
      for (Request& each : routed) each.route = name;
      expect_identical(run_all(routed), whole, name);
      if (name == std::string("off")) continue;
      EXPECT_GT(report(name).counts.accepted, 0u) << name;
      EXPECT_EQ(report(name).counts.lost, 0u) << report(name).last_problem;
    }
    for (size_t i = 0; i < plain.size(); ++i) {
      expect_near(whole[i].tokens, on_cpu[i].tokens, plain[i],
                  model + ", prompt " + std::to_string(i));
    }
  }

  static std::vector<Request> requests_of_tokens(int32_t n_tokens) {
    std::vector<Request> made;
    for (int32_t i = 0; i < 3; ++i) {
      Request r = request("", "off", n_tokens);
      std::vector<int32_t>& prompt = r.prompt_tokens.emplace();
      for (int32_t k = 0; k < 9 + 4 * i; ++k) prompt.push_back(40 + (7 * i + k * k) % 60);
      r.ignore_eos = true;
      made.push_back(r);
    }
    return made;
  }

  std::string model_folder_;
  KvDType kv_ = KvDType::kF32;
};

TEST_F(Emulated, greedy_texts_of_every_route_are_those_of_plain_decoding) {
  expect_texts("pico-draft", 2, 12, 0, KvDType::kF32);
}
TEST_F(Emulated, seeded_texts_of_every_route_are_those_of_plain_decoding) {
  expect_texts("pico-draft", 3, 10, 0.8f, KvDType::kBF16, 5);
}
TEST_F(Emulated, long_greedy_texts_are_those_of_plain_decoding) {
  expect_texts("pico-draft", 4, 16, 0, KvDType::kF32);
}
TEST_F(Emulated, long_seeded_texts_are_those_of_plain_decoding) {
  expect_texts("pico-draft", 8, 12, 0.8f, KvDType::kBF16);
}
TEST_F(Emulated, long_texts_of_the_target_model_are_those_of_plain_decoding) {
  expect_texts("pico-target", 8, 96, 0, KvDType::kF32);
}

class EmulatedFamily : public Emulated, public testing::WithParamInterface<std::string> {};

TEST_P(EmulatedFamily, writes_what_transformers_writes) {
  EngineOptions o = options();
  o.devices = {"cuda:0"};
  o.model.name = GetParam();
  o.model.path = model_folder_ = family_folder(folder_, GetParam());
  o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 4)};
  start(o);
  std::vector<Request> plain;
  std::vector<std::vector<int32_t>> expected;
  for (const Json& each : family_goldens().at(GetParam())) {
    Request r = request("", "off", 32);
    r.prompt_tokens = each.at("prompt").get<std::vector<int32_t>>();
    plain.push_back(r);
    expected.push_back(each.at("greedy"));
    expected.back().resize(32);
  }
  const std::vector<Outcome> outcomes = run_all(plain);
  expect_whole(outcomes, 32);
  std::vector<Request> routed = plain;
  for (Request& each : routed) each.route = "lookup";
  expect_identical(run_all(routed), outcomes, "lookup");
  for (size_t i = 0; i < plain.size(); ++i) {
    expect_near(outcomes[i].tokens, expected[i], plain[i],
                GetParam() + ", prompt " + std::to_string(i));
  }
}

class EmulatedQuantized : public Emulated, public testing::WithParamInterface<std::string> {};

TEST_P(EmulatedQuantized, writes_what_plain_decoding_writes) {
  EngineOptions o = options();
  o.model.name = GetParam();
  o.model.path = model_folder_ =
      family_folder(folder_, GetParam(), SPECD_TEST_REFERENCE "/quantized/");
  o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 4)};
  const std::vector<Request> plain = requests_of_tokens(24);
  start(o);
  const std::vector<Outcome> on_cpu = run_all(plain);
  o.devices = {"cuda:0"};
  start(o);
  const std::vector<Outcome> outcomes = run_all(plain);
  expect_whole(outcomes, 24);
  std::vector<Request> routed = plain;
  for (Request& each : routed) each.route = "lookup";
  expect_identical(run_all(routed), outcomes, "lookup");
  for (size_t i = 0; i < plain.size(); ++i) {
    expect_near(outcomes[i].tokens, on_cpu[i].tokens, plain[i],
                GetParam() + ", prompt " + std::to_string(i));
  }
}

// With blocks of scales, and with one scale for each matrix, whose outputs four ranks share.
TEST_F(Emulated, float8_on_tensor_cores_writes_nearly_what_the_cpu_writes) {
  const std::vector<Request> plain = requests_of_tokens(10);
  for (const auto& [name, n_ranks] : std::vector<std::pair<std::string, int32_t>>{
           {"fp8_block_llama", 1}, {"fp8_dynamic_qwen3", 4}}) {
    if (!open_cuda_device(n_ranks - 1, {}).ok()) GTEST_SKIP() << "one device";
    EngineOptions o = options();
    o.model.path = model_folder_ = family_folder(folder_, name, SPECD_TEST_REFERENCE "/quantized/");
    start(o);
    const std::vector<Outcome> on_cpu = run_all(plain);
    o.numerics = Numerics::kFast;
    o.devices = {"cuda:0"};
    o.tensor_parallel_size = n_ranks;
    start(o);
    const std::vector<Outcome> outcomes = run_all(plain);
    expect_whole(outcomes, 10);
    for (size_t i = 0; i < plain.size(); ++i) {
      expect_near(outcomes[i].tokens, on_cpu[i].tokens, plain[i],
                  name + ", prompt " + std::to_string(i), kCloseFast);
    }
  }
}

// With tensor cores, of which ranks exchange one segment each, beside float32, of which they exchange
// eight.
TEST_F(Emulated, matrices_of_several_types_write_on_ranks_what_one_device_writes) {
  const std::vector<Request> plain = requests_of_tokens(10);
  EngineOptions o = options();
  o.model.path = model_folder_ = model_of_eight_heads(folder_ + "/mixed", 4, 64, 272);
  std::filesystem::copy(kFamilyModels + "tokenizer.json", o.model.path + "/tokenizer.json");
  shorten_values(o.model.path + "/model.safetensors");
  ASSERT_EQ(store_as(o.model.path + "/model.safetensors",
                     {{"model.layers.0.self_attn.k_proj.weight", "BF16"},
                      {"model.layers.0.self_attn.o_proj.weight", "BF16"},
                      {"model.layers.1.mlp.down_proj.weight", "BF16"},
                      {"lm_head.weight", "F16"}}),
            4u);
  start(o);
  const std::vector<Outcome> on_cpu = run_all(plain);
  o.devices = {"cuda:0"};
  for (const auto& [numerics, close] :
       {std::pair{Numerics::kStrict, kCloseChoice}, std::pair{Numerics::kFast, kCloseFast}}) {
    o.numerics = numerics;
    o.tensor_parallel_size = 1;
    start(o);
    const std::vector<Outcome> on_one = run_all(plain);
    expect_whole(on_one, 10);
    if (!open_cuda_device(1, {}).ok()) GTEST_SKIP() << "one device";
    o.tensor_parallel_size = 2;
    start(o);
    const std::vector<Outcome> on_two = run_all(plain);
    for (size_t i = 0; i < plain.size(); ++i) {
      const std::string what = std::string(numerics == Numerics::kFast ? "fast" : "strict") +
                               ", prompt " + std::to_string(i);
      expect_near(on_one[i].tokens, on_cpu[i].tokens, plain[i], what, close);
      expect_near(on_two[i].tokens, on_cpu[i].tokens, plain[i], what + ", two ranks", close);
    }
    if (numerics == Numerics::kStrict) expect_identical(on_two, on_one, "two ranks");
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, EmulatedQuantized,
                         testing::Values("ct_int8_static_qwen3", "ct_int4_actorder_llama",
                                         "awq_qwen3", "fp8_block_llama", "ct_mixed_llama"),
                         [](const auto& model) { return model.param; });

// The bits of one. The draft model is shared too.
TEST_F(Emulated, ranks_write_what_one_device_writes) {
  const std::string folder = family_folder(folder_, "llama_bias");
  std::vector<Outcome> plain;
  for (const auto& [n_ranks, n_stages] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    const std::string what = std::to_string(n_stages) + " stages of " + std::to_string(n_ranks);
    if (!open_cuda_device(n_ranks * n_stages - 1, {}).ok()) {
      GTEST_SKIP() << "too few devices for " << what;
    }
    EngineOptions o = options();
    o.devices = {"cuda:0"};
    o.model.path = folder;
    o.draft_models = {{.name = "draft", .path = folder, .kv_dtype = KvDType::kF32}};
    o.tensor_parallel_size = n_ranks;
    o.pipeline_parallel_size = n_stages;
    o.routes = {
        route("draft",
              plugin("specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 3}}), 3)};
    start(o);
    for (const char* name : {"off", "draft"}) {
      std::vector<Request> all;
      for (size_t i = 0; i < 2; ++i) {
        Request r = request("", name, 9, i % 2 == 0 ? 0 : 0.8f, 5);
        r.prompt_tokens.emplace(10 + 7 * i, static_cast<int32_t>(60 + i));
        r.ignore_eos = true;
        all.push_back(r);
      }
      const std::vector<Outcome> texts = run_all(all);
      if (plain.empty()) plain = texts;
      expect_whole(texts, 9);
      expect_identical(texts, plain, name + (" on " + what));
      if (name == std::string("off")) continue;
      EXPECT_EQ(report(name).counts.lost, 0u) << report(name).last_problem;
      EXPECT_GT(report(name).counts.drafted, 0u) << name;
    }
    audit();
  }
}

// NCCL goes on waiting for it, and nobody waits for NCCL; or NCCL fails at once, and its own reason is told.
TEST_F(Emulated, a_rank_that_cannot_join_ends_the_start) {
  if (!open_cuda_device(1, {}).ok()) GTEST_SKIP() << "one device";
  EngineOptions o = options();
  o.devices = {"cuda:0", "cuda:1"};
  o.model.path = family_folder(folder_, "llama_bias");
  o.tensor_parallel_size = 2;
  for (const char* how : {"fail_join=2,fail_join_is_seen=1", "fail_join=4,join_seconds=5"}) {
    setenv("SPECD_STRICT_NCCL", how, 1);
    const auto begin = std::chrono::steady_clock::now();
    const Status status = Engine::create(o, {}).status();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << how;
    EXPECT_NE(status.message().find("this join fails, as asked for"), std::string::npos)
        << how << ": " << status.to_string();
  }
  std::this_thread::sleep_for(std::chrono::seconds(6));  // NCCL's thread ends
  unsetenv("SPECD_STRICT_NCCL");
}

// Also with graphs, which NCCL does not let go of while it aborts.
TEST_F(Emulated, a_rank_that_hangs_ends_every_request) {
  if (!open_cuda_device(1, {}).ok()) GTEST_SKIP() << "one device";
  setenv("SPECD_STRICT_NCCL", "hang_rank=1,hang_after=60", 1);
  EngineOptions o = options();
  o.devices = {"cuda:0"};
  o.model.path = family_folder(folder_, "llama_bias");
  o.tensor_parallel_size = 2;
  o.rank_timeout_seconds = 1;
  start(o);
  unsetenv("SPECD_STRICT_NCCL");
  Request r = request("", "off", 60);
  r.prompt_tokens.emplace(5, 60);
  r.ignore_eos = true;
  const Outcome ended = run(r);
  EXPECT_EQ(ended.finish, FinishReason::kError);
  EXPECT_NE(ended.error.message().find("for an exchange with rank "), std::string::npos)
      << ended.error.to_string();
  EXPECT_GT(ended.tokens.size(), 3u) << "steps have become graphs";
  engine_.reset();
}

INSTANTIATE_TEST_SUITE_P(Families, EmulatedFamily, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace specd
