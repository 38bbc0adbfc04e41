// Trained heads in the engine, on the CPU and on the stand-in device: whatever they guess, the texts
// are those of plain decoding, and the guesses are the same everywhere.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <semaphore>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/sanitizer.h"
#include "core/model/checkpoint.h"
#include "tests/core/engine_rig.h"
#include "tests/device/fake_cuda.h"
#include "tests/core/quantized_zoo.h"
#include "tests/head_files.h"

namespace specd {
namespace {

constexpr int64_t kHidden = 192, kVocab = 4096;  // of pico-draft, the target here

// Heads whose blocks change little, on the target's own output head: they guess the last token again.
HeadFile shared_medusa(int heads) {
  HeadFile file;
  for (int h = 0; h < heads; ++h) {
    const std::string at = std::to_string(h) + ".0.linear.";
    file.add(at + "weight", {kHidden, kHidden}, 0.0078125f).add(at + "bias", {kHidden}, 0.0078125f);
  }
  return file;
}

class Heads : public EngineTest {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 0);
    unsetenv("SPECD_FAKE_CUDA");
    EngineTest::SetUp();
  }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  static std::vector<Request> requests(const std::string& route_name) {
    std::vector<Request> all;
    for (size_t i = 0; i < 5; ++i) {
      all.push_back(request(prompts()[i], route_name, 24));
      all.push_back(request(prompts()[i], route_name, 24, 0.8f, 77));
    }
    return all;
  }
  // Texts are those of `off`, and each route drafts the same on both devices and with any batch. Few
  // enough nodes, so that a full batch cuts no budget.
  void expect_identity(const std::vector<RouteOptions>& routes, bool accepts = true) {
    std::vector<Outcome> plain;
    std::map<std::string, std::vector<uint64_t>> counts;
    uint64_t accepted = 0;
    const std::pair<std::string, int32_t> settings[] = {{"cpu", 1}, {"cpu", 16}, {"cuda:0", 5}};
    for (const auto& [device, batch] : settings) {
      EngineOptions o = options("pico-draft");
      o.devices = {device};
      o.routes = routes;
      o.max_sequences = batch;
      start(o);
      if (plain.empty()) plain = run_all(requests("off"));
      for (const RouteOptions& each : routes) {
        const std::string what = each.name + " on " + device + ", " + std::to_string(batch);
        ASSERT_EQ(report(each.name).state, RouteState::kLive)
            << report(each.name).refused.to_string();
        expect_identical(run_all(requests(each.name)), plain, what);
        const RouteReport seen = report(each.name);
        EXPECT_EQ(seen.counts.lost, 0u) << what << ": " << seen.last_problem;
        EXPECT_EQ(seen.counts.cut, 0u) << what << ": " << seen.last_problem;
        EXPECT_GT(seen.counts.drafted, 0u) << what;
        accepted += seen.counts.accepted;
        const std::vector<uint64_t> now = {seen.counts.drafted, seen.counts.accepted};
        EXPECT_EQ(counts.emplace(each.name, now).first->second, now) << what;
      }
      audit();
    }
    EXPECT_TRUE(accepted > 0 || !accepts);
  }
};

TEST_F(Heads, medusa_changes_no_text_and_drafts_the_same_everywhere) {
  shared_medusa(4).write(at("shared"));
  HeadFile own;
  std::vector<int64_t> map;
  for (int64_t i = 0; i < 500; ++i) map.push_back(i * 8 + 3);
  for (int h = 0; h < 3; ++h) {
    const std::string number = std::to_string(h);
    own.add("blocks." + number + ".layers.0.weight", {kHidden, kHidden})
        .add("blocks." + number + ".layers.1.weight", {kHidden, kHidden})
        .add("lm_heads." + number + ".weight", {500, kHidden});
  }
  own.add("token_map", "I64", {500}, map).write(at("own"), {{"medusa_num_heads", 2}});
  const auto medusa = [&](const std::string& name, Json config) {
    config["weights"] = at(name);
    return plugin("specd.drafter.medusa", std::move(config));
  };
  expect_identity({route("shared", medusa("shared", Json::object()), 24),
                   route("few", medusa("shared", {{"choices", {{0}, {1}, {0, 0}, {0, 0, 0}}}}), 3),
                   route("own", medusa("own", {{"use_target_noise", false}}), 20)});
}

// FasterDecoding publishes Medusa 1.0 as one folder of the model and its heads.
TEST_F(Heads, medusa_drafts_for_the_model_in_its_own_folder) {
  const std::string model = std::string(SPECD_TEST_ZOO) + "/pico-draft", both = at("both");
  std::filesystem::copy(model, both);
  HeadFile file;
  std::vector<std::string> heads;
  for (const std::string h : {"0", "1"}) {
    heads.push_back("medusa_head." + h + ".0.linear.weight");
    heads.push_back("medusa_head." + h + ".0.linear.bias");
    heads.push_back("medusa_head." + h + ".1.weight");
    file.add(heads[heads.size() - 3], {kHidden, kHidden}, 0.0078125f)
        .add(heads[heads.size() - 2], {kHidden}, 0.0078125f)
        .add(heads[heads.size() - 1], {kVocab, kHidden});
  }
  file.write(at("heads"));
  Json map, config = Json::parse(std::ifstream(model + "/config.json"));
  const auto checkpoint = Checkpoint::open(model);
  for (const auto& each : checkpoint.value().tensors()) {
    map[each.first] = "model-00001-of-00002.safetensors";
  }
  for (const std::string& each : heads) map[each] = "model-00002-of-00002.safetensors";
  config["medusa_num_heads"] = 2;
  config["medusa_num_layers"] = 1;
  std::filesystem::rename(both + "/model.safetensors", both + "/model-00001-of-00002.safetensors");
  std::filesystem::rename(at("heads/model.safetensors"),
                          both + "/model-00002-of-00002.safetensors");
  std::ofstream(both + "/model.safetensors.index.json") << Json{{"weight_map", map}}.dump();
  std::ofstream(both + "/config.json") << config.dump();

  start(options("pico-draft"));
  const std::vector<Outcome> plain = run_all(requests("off"));
  EngineOptions o = options("pico-draft");
  o.model.path = both;
  o.routes = {route("medusa", plugin("specd.drafter.medusa", {{"weights", both}}), 20)};
  start(o);
  ASSERT_EQ(report("medusa").state, RouteState::kLive) << report("medusa").refused.to_string();
  expect_identical(run_all(requests("medusa")), plain, "model and heads in one folder");
  EXPECT_GT(report("medusa").counts.drafted, 0u);
}

// A head whose logits are the target's on its last state: it guesses the last token again.
HeadFile echoing_redrafter(int64_t exit, int blocks) {
  HeadFile file;
  std::vector<float> projection(static_cast<size_t>(exit * 2 * kHidden));
  for (int64_t i = 0; i < std::min(exit, kHidden); ++i) {
    projection[static_cast<size_t>(i * 2 * kHidden + i)] = 1;
  }
  if (exit != 2 * kHidden) {
    file.add("input_proj.weight", "F32", {exit, 2 * kHidden}, projection)
        .add("input_proj.bias", {exit}, 0.0078125f);
  }
  for (int l = 0; l < blocks; ++l) {
    const std::string at = "lm_head." + std::to_string(l) + ".linear.";
    file.add(at + "weight", {exit, exit}, 0.0078125f).add(at + "bias", {exit}, 0.0078125f);
  }
  return file;
}

TEST_F(Heads, redrafter_changes_no_text_and_drafts_the_same_everywhere) {
  HeadFile narrow = echoing_redrafter(96, 2), wide = echoing_redrafter(2 * kHidden, 1);
  narrow.add("lm_head.2.weight", {kVocab, 96});
  for (const char* each : {"rnn_u.weight", "rnn_w.weight"}) narrow.add(each, {kHidden, kHidden});
  narrow.add("rnn_u.bias", {kHidden}).write(at("narrow"));
  wide.add("lm_head.1.weight", {kVocab, 2 * kHidden}).write(at("wide"));
  const auto redrafter = [&](const std::string& name, Json config) {
    config["weights"] = at(name);
    return plugin("specd.drafter.redrafter", std::move(config));
  };
  expect_identity(
      {route("recurrent", redrafter("narrow", {{"beams", 6}, {"draft_tokens", 4}}), 24),
       route("adding", redrafter("wide", {{"beams", 3}, {"use_target_noise", false}}), 9)});
}

// A decoder layer in a file; scale: of its matrices.
void add_layer(HeadFile& file, const std::string& at, int64_t input, float scale) {
  constexpr int64_t kHeads = 3, kKvHeads = 1, kDim = 64, kFfn = 128;
  const std::string attention = at + "self_attn.", mlp = at + "mlp.";
  file.add(attention + "q_proj.weight", {kHeads * kDim, input}, scale)
      .add(attention + "k_proj.weight", {kKvHeads * kDim, input}, scale)
      .add(attention + "v_proj.weight", {kKvHeads * kDim, input}, scale)
      .add(attention + "o_proj.weight", {kHidden, kHeads * kDim}, scale)
      .add(mlp + "gate_proj.weight", {kFfn, kHidden}, scale)
      .add(mlp + "up_proj.weight", {kFfn, kHidden}, scale)
      .add(mlp + "down_proj.weight", {kHidden, kFfn}, scale)
      .add(at + "post_attention_layernorm.weight", {kHidden}, 0.0078125f, 1);
}
Json layer_config() {
  return {{"hidden_size", kHidden},         {"num_attention_heads", 3}, {"num_key_value_heads", 1},
          {"rms_norm_eps", 1e-5},           {"rope_theta", 10000.0},    {"vocab_size", kVocab},
          {"max_position_embeddings", 2048}};
}
// [rows, columns] that hands on `width` columns from `first`.
std::vector<float> handing_on(int64_t rows, int64_t columns, int64_t first) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows && first + i < columns; ++i) {
    values[static_cast<size_t>(i * columns + first + i)] = 1;
  }
  return values;
}

TEST_F(Heads, eagle_changes_no_text_and_drafts_the_same_everywhere) {
  HeadFile file;
  file.add("fc.weight", "F32", {kHidden, 2 * kHidden}, handing_on(kHidden, 2 * kHidden, kHidden));
  add_layer(file, "layers.0.", kHidden, 0.015625f);
  Json config = layer_config();
  config["bias"] = false;
  file.write(at("head"), config);
  const auto eagle = [&](Json more) {
    more["weights"] = at("head");
    return plugin("specd.drafter.eagle", std::move(more));
  };
  expect_identity({route("chain", eagle({{"mode", "chain"}, {"draft_tokens", 3}}), 3),
                   route("static", eagle({{"mode", "static"}}), 24),
                   route("dynamic", eagle({{"total_token", 13}, {"depth", 2}, {"top_k", 3}}), 12)});
}

TEST_F(Heads, eagle3_changes_no_text_and_drafts_the_same_everywhere) {
  HeadFile file;
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < 1000; ++i) offsets.push_back(3 * i);
  file.add("fc.weight", "F32", {kHidden, 2 * kHidden}, handing_on(kHidden, 2 * kHidden, kHidden))
      .add("midlayer.hidden_norm.weight", {kHidden}, 0.0078125f, 1)
      .add("midlayer.input_layernorm.weight", {kHidden}, 0.0078125f, 1)
      .add("norm.weight", {kHidden}, 0.0078125f, 1)
      .add("lm_head.weight", {1000, kHidden})
      .add("d2t", "I64", {1000}, offsets);
  add_layer(file, "midlayer.", 2 * kHidden, 0.015625f);
  file.write(at("head"), layer_config());
  const auto eagle3 = [&](Json more) {
    more["weights"] = at("head");
    more["layer_ids"] = {0, 2};
    return plugin("specd.drafter.eagle3", std::move(more));
  };
  expect_identity({route("chain", eagle3({{"mode", "chain"}, {"draft_tokens", 3}}), 3),
                   route("static", eagle3({{"mode", "static"}}), 24),
                   route("dynamic", eagle3({{"total_token", 13}, {"depth", 2}, {"top_k", 3}}), 12)},
                  false);
}

// What update() feeds differs from step to step; the draft of a chain does not.
TEST_F(Heads, a_chain_is_repeated_as_a_graph) {
  HeadFile file;
  file.add("fc.weight", "F32", {kHidden, 2 * kHidden}, handing_on(kHidden, 2 * kHidden, kHidden));
  add_layer(file, "layers.0.", kHidden, 0.015625f);
  Json config = layer_config();
  config["bias"] = false;
  file.write(at("head"), config);
  EngineOptions o = options("pico-draft");
  o.devices = {"cuda:0"};
  for (const std::string mode : {"chain", "dynamic"}) {
    o.routes.push_back(
        route(mode, plugin("specd.drafter.eagle", {{"weights", at("head")}, {"mode", mode}}), 4));
  }
  start(o);
  void* library = dlopen(SPECD_TEST_FAKE_CUDA, RTLD_NOW);
  const auto take =
      reinterpret_cast<fake_cuda::TakeRecordFn>(dlsym(library, fake_cuda::kTakeRecord));
  std::map<std::string, int64_t> searched;  // calls of top_k outside of graphs
  for (const std::string mode : {"chain", "dynamic"}) {
    run(request(prompts()[0], mode, 16));
    fake_cuda::Record record;
    take(&record);
    run(request(prompts()[0], mode, 64));
    take(&record);
    EXPECT_EQ(record.faults, std::vector<std::string>());
    searched[mode] = std::count(record.calls.begin(), record.calls.end(), "top_k");
  }
  dlclose(library);
  EXPECT_GT(searched["dynamic"], 64) << "once a level";
  EXPECT_LT(searched["chain"], 20) << "in the first steps of a shape only";
}

// ---- the heads of the zoo, on the model that they were trained for ---------------------------

class ZooHeads : public Heads {
 protected:
  // Each head with a tree that fits it; EAGLE-3 also as a chain, which a device captures.
  static std::vector<RouteOptions> zoo() {
    const auto head = [](const std::string& name, Json config) {
      config["weights"] = std::string(SPECD_TEST_ZOO) + "/pico-" + name;
      return plugin("specd.drafter." + (name == "eagle2" ? "eagle" : name), std::move(config));
    };
    const Json dynamic = {{"total_token", 17}, {"depth", 4}, {"top_k", 4}};
    return {
        route("eagle3", head("eagle3", dynamic), 16),
        route("eagle3_chain", head("eagle3", {{"mode", "chain"}, {"draft_tokens", 5}}), 5),
        route("eagle2", head("eagle2", dynamic), 16),
        route("medusa", head("medusa", Json::object()), 20),
        route("redrafter", head("redrafter", Json::object()), 20),
    };
  }
};

// Tokens per step, well below what the heads reach on more and longer texts (HEADS_CARD.md): a head
// that reads the wrong state or row falls below.
TEST_F(ZooHeads, accept_what_they_were_trained_for) {
  EngineOptions o = options("pico-target");
  o.routes = zoo();
  start(o);
  const std::map<std::string, double> floors = {
      {"eagle3", 3.2}, {"eagle3_chain", 2.7}, {"eagle2", 3.0}, {"medusa", 1.6}, {"redrafter", 1.5}};
  for (const auto& [name, floor] : floors) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) all.push_back(request(prompt, name, 48));
    int64_t tokens = 0, steps = 0;
    for (const Outcome& each : run_all(all)) {
      tokens += each.usage.completion_tokens;
      steps += each.usage.steps;
    }
    EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(steps), floor) << name;
  }
}

// The formats and caches that do not meet in QuantizedMatrix (identity_matrix_test.cc).
class QuantizedHeads : public ZooHeads, public testing::WithParamInterface<QuantizedSubject> {};

TEST_P(QuantizedHeads, change_no_text_and_draft_the_same_in_any_batch) {
  if (SPECD_HAS_SANITIZER) GTEST_SKIP() << "slow; heads and forwards over codes run elsewhere too";
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is missing";
  const std::string target = quantized("pico-target", GetParam().options, folder_);
  std::vector<Outcome> plain;
  std::map<std::string, uint64_t> accepted;
  for (const int32_t batch : {1, 4}) {
    EngineOptions o = options("pico-target");
    o.model.path = target;
    o.model.kv_dtype = GetParam().kv_dtype;
    o.max_sequences = batch;
    o.routes = zoo();
    start(o);
    // Behind a cached prompt a head would guess otherwise.
    const auto apart = [](const std::string& route_name) {
      std::vector<Request> all = requests(route_name);
      for (size_t i = 0; i < all.size(); ++i) all[i].cache_salt = route_name + std::to_string(i);
      return all;
    };
    if (plain.empty()) plain = run_all(apart("off"));
    for (const RouteOptions& each : o.routes) {
      const std::string what = each.name + ", " + std::to_string(batch);
      ASSERT_EQ(report(each.name).state, RouteState::kLive)
          << report(each.name).refused.to_string();
      expect_identical(run_all(apart(each.name)), plain, what);
      const RouteReport seen = report(each.name);
      EXPECT_EQ(seen.counts.lost, 0u) << what << ": " << seen.last_problem;
      EXPECT_GT(seen.counts.accepted, 0u) << what;
      EXPECT_EQ(accepted.emplace(each.name, seen.counts.accepted).first->second,
                seen.counts.accepted)
          << what;
    }
    audit();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedHeads,
                         testing::Values(QuantizedSubject{"w8a8", "w8a8", KvDType::kF8E4M3},
                                         QuantizedSubject{"w4a16", "w4a16 --group 64",
                                                          KvDType::kInt8},
                                         QuantizedSubject{"fp8", "fp8", KvDType::kInt8}),
                         [](const auto& subject) { return subject.param.name; });

// Heads in codes propose what they were trained for too, a little less in 4 bits, and change no text.
TEST_P(QuantizedHeads, of_codes_on_a_plain_target_accept_nearly_as_much) {
  if (SPECD_HAS_SANITIZER)
    GTEST_SKIP() << "slow; matrices of codes are made and read elsewhere too";
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is missing";
  EngineOptions o = options("pico-target");
  for (RouteOptions each : zoo()) {
    o.routes.push_back(each);
    const std::string path = each.drafter.config["weights"],
                      head = std::filesystem::path(path).filename();
    if (!std::filesystem::exists(folder_ + "/" + head))
      quantized(head, GetParam().options + " --ignore --modules 're:.*'", folder_);
    each.name += "_codes";
    each.drafter.config["weights"] = folder_ + "/" + head;
    o.routes.push_back(each);
  }
  start(o);
  std::map<std::string, uint64_t> accepted;
  std::vector<Request> plain;
  for (const std::string& prompt : prompts()) plain.push_back(request(prompt, "off", 40));
  const std::vector<Outcome> texts = run_all(plain);
  // How many tokens a route accepts while it writes these texts.
  const auto accepted_by = [&](const std::string& name) {
    EXPECT_EQ(report(name).state, RouteState::kLive) << report(name).refused.to_string();
    std::vector<Request> all = plain;
    for (Request& one : all) one.route = name;
    engine_->clear_prefix_cache();
    expect_identical(run_all(all), {texts.begin(), texts.begin() + std::ssize(plain)}, name);
    EXPECT_EQ(report(name).counts.lost, 0u) << report(name).last_problem;
    return report(name).counts.accepted;
  };
  for (const RouteOptions& each : o.routes) accepted[each.name] = accepted_by(each.name);
  for (const RouteOptions& each : o.routes) {
    if (each.name.ends_with("_codes")) continue;
    const uint64_t all = accepted[each.name], of_codes = accepted[each.name + "_codes"];
    std::cout << each.name << ": " << all << " tokens accepted, " << of_codes << " in codes\n";
    EXPECT_GT(100 * of_codes, 85 * all) << each.name;
  }
  if (GetParam().name != "w4a16") return;
  // On a thread beside the step, too.
  EngineOptions beside = o;
  beside.routes = {*std::ranges::find(o.routes, "medusa_codes", &RouteOptions::name)};
  beside.routes.push_back(beside.routes.front());
  beside.routes.back().name = "medusa_guarded";
  beside.routes.back().isolation = Isolation::kGuarded;
  beside.routes.back().step_budget_us = 4'000'000;
  start(beside);
  for (const RouteOptions& each : beside.routes) {
    EXPECT_EQ(accepted_by(each.name), accepted["medusa_codes"]) << each.name;
  }
  o.devices = {"cuda:0"};
  start(o);
  plain.resize(2);
  for (const RouteOptions& each : o.routes) {
    if (!each.name.ends_with("_codes")) continue;
    EXPECT_GT(accepted_by(each.name), 0u) << each.name << " on a device";
  }
}

TEST_F(ZooHeads, stop_drafting_where_their_positions_end_and_go_on_with_the_next_request) {
  EngineOptions o = options("pico-target");
  o.max_sequences = 2;
  o.routes = zoo();
  std::erase_if(o.routes, [](const RouteOptions& each) { return each.name[0] != 'e'; });
  ASSERT_EQ(o.routes.size(), 3u);
  for (RouteOptions& each : o.routes) each.drafter.config["max_positions"] = 64;
  start(o);
  for (const RouteOptions& each : o.routes) {
    // One that ends before, one that goes beyond beside it, and one whose prompt is beyond.
    const auto requests = [&](const std::string& route_name) {
      std::string prompt;
      for (const std::string& text : prompts()) prompt += text;
      return std::vector<Request>{request(prompts()[2], route_name, 24),
                                  request(prompts()[0], route_name, 96),
                                  request(prompt, route_name, 24)};
    };
    const std::vector<Outcome> plain = run_all(requests("off"));
    engine_->clear_prefix_cache();  // behind a cached prompt a head's positions begin anew
    const std::vector<Outcome> drafted = run_all(requests(each.name));
    expect_identical(drafted, plain, each.name);
    EXPECT_GT(drafted[0].usage.accepted_tokens, 8) << each.name;
    EXPECT_GT(drafted[1].usage.accepted_tokens, 8) << each.name;
    EXPECT_GT(drafted[1].usage.steps, 40) << each.name << ": plain behind position 64";
    EXPECT_EQ(drafted[2].usage.draft_tokens, 0) << each.name;
    EXPECT_FALSE(report(each.name).suspended) << report(each.name).last_problem;
    EXPECT_EQ(report(each.name).counts.lost, 2u) << each.name;
    EXPECT_NE(report(each.name).last_problem.find("64"), std::string::npos)
        << report(each.name).last_problem;
    EXPECT_GT(run(request(prompts()[2], each.name, 24)).usage.accepted_tokens, 8) << each.name;
  }
}

// A drafter's own KV is not cached with the prefix: behind a cached prompt it begins without the rows
// of the prompt, and drafts as well as ever once the text is long enough.
TEST_F(ZooHeads, recover_behind_a_cached_prompt) {
  const bool is_full = std::getenv("SPECD_NIGHTLY") != nullptr;
  std::vector<std::string> texts;
  for (const std::string& prompt : prompts()) {
    for (size_t n = 1; n <= (is_full ? 5u : 1u); ++n) {
      texts.push_back(prompt + prompts()[n] + prompts()[n + 1]);
    }
  }
  EngineOptions o = options("pico-target");
  o.routes = zoo();
  start(o);
  constexpr size_t kFrom = 64;  // tokens of the answer that are not counted
  const int32_t n_tokens = is_full ? 256 : 160;
  for (const RouteOptions& each : o.routes) {
    if (each.name[0] != 'e') continue;  // Medusa and ReDrafter read the last state alone
    double tokens[2] = {}, steps[2] = {};
    for (const std::string& text : texts) {
      engine_->clear_prefix_cache();
      for (const bool is_cold : {false, true}) {
        size_t n_heard = 0;
        Usage usage;
        std::binary_semaphore done(0);
        const auto id =
            engine_->submit(request(text, each.name, n_tokens), [&](const Event& event) {
              if (n_heard >= kFrom && !event.tokens.empty()) {
                tokens[is_cold] += static_cast<double>(event.tokens.size());
                ++steps[is_cold];
              }
              n_heard += event.tokens.size();
              if (!event.done) return;
              usage = event.usage;
              done.release();
            });
        ASSERT_TRUE(id.ok()) << id.status().to_string();
        done.acquire();
        ASSERT_EQ(n_heard, static_cast<size_t>(n_tokens));
        ASSERT_EQ(usage.cached_prompt_tokens > 0, is_cold) << each.name;
      }
    }
    const double fresh = tokens[0] / steps[0], cold = tokens[1] / steps[1];
    std::cout << each.name << " from token " << kFrom + 1 << " on: " << fresh
              << " a step, behind a cached prompt " << cold << "\n";
    EXPECT_NEAR(cold, fresh, 0.15) << each.name;
  }
}

struct Setting {
  std::string device;
  int32_t threads, batch;
  bool is_starved;
  std::string text() const {
    return (device == "cpu" ? "cpu" : "device") + std::string("_threads_") +
           std::to_string(threads) + "_batch_" + std::to_string(batch) +
           (is_starved ? "_starved" : "_ample");
  }
};

class ZooHeadsSettings : public ZooHeads {
 protected:
  std::string target_;  // if not pico-target
  KvDType kv_dtype_ = KvDType::kF32;

  // Texts of every head, greedy and seeded, with prompts computed and cached, equal plain decoding's.
  void expect_no_text_changes(const Setting& setting, size_t n_texts_of_a_prompt) {
    std::vector<std::string> texts;
    for (const std::string& prompt : prompts()) {
      for (size_t n = 1; n <= n_texts_of_a_prompt; ++n) texts.push_back(prompt + prompts()[n]);
    }
    const auto of_route = [&](const std::string& route_name) {
      std::vector<Request> all;
      for (size_t i = 0; i < texts.size(); ++i) {
        all.push_back(request(texts[i], route_name, 24, i % 2 == 0 ? 0.0f : 0.8f, i));
      }
      return all;
    };
    const std::vector<RouteOptions> routes = zoo();
    // One plain setting for all: a fault of a device, thread or page must not be in both texts.
    EngineOptions o = options("pico-target");
    if (!target_.empty()) o.model.path = target_;
    o.model.kv_dtype = kv_dtype_;
    o.devices = {"cpu"};
    o.threads = 2;
    start(o);
    const std::vector<Outcome> plain = run_all(of_route("off"));
    o.devices = {setting.device};
    o.threads = setting.threads;
    o.max_sequences = setting.batch;
    o.routes = routes;
    if (setting.is_starved) {
      o.model.kv_bytes_max = 0;
      o.model.kv_pages = 24;
    }
    start(o);
    for (const RouteOptions& of : routes) {
      ASSERT_EQ(report(of.name).state, RouteState::kLive) << report(of.name).refused.to_string();
      engine_->clear_prefix_cache();
      for (const char* prefix : {"computed", "cached"}) {
        expect_identical(run_all(of_route(of.name)), plain,
                         of.name + " in " + setting.text() + ", prompts " + prefix);
      }
      const RouteReport seen = report(of.name);
      if (!setting.is_starved) {
        EXPECT_EQ(seen.counts.lost, 0u) << of.name << ": " << seen.last_problem;
        EXPECT_EQ(seen.counts.cut, 0u) << of.name << ": " << seen.last_problem;
      }
      EXPECT_GT(seen.counts.accepted, 0u) << of.name;
    }
    audit();
  }
};

TEST_F(ZooHeadsSettings, change_no_text) {
  expect_no_text_changes({"cpu", 2, 16, true}, 1);
  expect_no_text_changes({"cuda:0", 1, 5, false}, 1);
}

// Pages hold scales beside the codes.
TEST_F(ZooHeadsSettings, change_no_text_of_a_quantized_target_that_is_starved) {
  if (SPECD_HAS_SANITIZER) GTEST_SKIP() << "slow; heads and forwards over codes run elsewhere too";
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is missing";
  target_ = quantized("pico-target", "w4a16 --group 64", folder_);
  kv_dtype_ = KvDType::kInt8;
  expect_no_text_changes({"cpu", 2, 16, true}, 1);
}

using HeadsSetting = std::tuple<std::string, int32_t, int32_t, bool>;
Setting setting_of(const HeadsSetting& values) {
  return std::apply([](const auto&... each) { return Setting{each...}; }, values);
}

class HeadsFullProduct : public ZooHeadsSettings,
                         public testing::WithParamInterface<HeadsSetting> {};

TEST_P(HeadsFullProduct, changes_no_text) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "SPECD_NIGHTLY is not set";
  expect_no_text_changes(setting_of(GetParam()), 5);
}

INSTANTIATE_TEST_SUITE_P(Settings, HeadsFullProduct,
                         testing::Combine(testing::Values("cpu", "cuda:0"), testing::Values(1, 2),
                                          testing::Values(1, 5, 16), testing::Bool()),
                         [](const auto& values) { return setting_of(values.param).text(); });

}  // namespace
}  // namespace specd
