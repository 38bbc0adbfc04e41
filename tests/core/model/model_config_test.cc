#include "core/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/json.h"

namespace specd {
namespace {

const std::string kZoo = std::string(SPECD_TEST_ZOO) + "/";

class ModelConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_config_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    config_ = parse_json_file(kZoo + "pico-target/config.json", 1 << 20).value();
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<ModelConfig> load(const Json& config) { return load_text(config.dump()); }
  Result<ModelConfig> load_text(const std::string& text) {
    std::ofstream(root_ + "/config.json") << text;
    return load_model_config(root_);
  }

  std::string root_;
  Json config_;
};

TEST_F(ModelConfigTest, the_target_of_the_tree_is_read) {
  const ModelConfig config = load_model_config(kZoo + "pico-target").value();
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.intermediate_size, 1024);
  EXPECT_EQ(config.n_layers, 8);
  EXPECT_EQ(config.n_heads, 6);
  EXPECT_EQ(config.n_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token, 0);
  EXPECT_EQ(config.eos_tokens, std::vector<int32_t>{1});
}

// Keys and values as their makers published them.
TEST_F(ModelConfigTest, published_files_are_read) {
  struct Published {
    const char* text;
    int32_t n_kv_heads, head_dim, max_positions, window;
    double theta;
    bool tied, qkv_bias, head_norm;
    std::vector<int32_t> eos;
  };
  const std::vector<Published> all = {
      {R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
           "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
           "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
           "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
           "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
           "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
           "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
             "original_max_position_embeddings": 8192, "rope_type": "llama3"},
           "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
           "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})",
       8,
       64,
       131072,
       0,
       500000,
       true,
       false,
       false,
       {128001, 128008, 128009}},
      {R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
           "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
           "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
           "tie_word_embeddings": false, "torch_dtype": "bfloat16",
           "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})",
       8,
       128,
       32768,
       4096,
       10000,
       false,
       false,
       false,
       {2}},
      {R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
           "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896,
           "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
           "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
           "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
           "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
           "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
           "use_sliding_window": false, "vocab_size": 151936})",
       2,
       64,
       32768,
       0,
       1000000,
       true,
       true,
       false,
       {151645}},
      {R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
           "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
           "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
           "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
           "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
           "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
           "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
           "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
           "vocab_size": 151936})",
       8,
       128,
       40960,
       0,
       1000000,
       true,
       false,
       true,
       {151645}},
      {R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
           "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
           "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
           "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
           "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
           "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
           "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
           "tie_word_embeddings": true, "torch_dtype": "bfloat16",
           "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
           "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})",
       3,
       64,
       8192,
       0,
       100000,
       true,
       false,
       false,
       {2}}};
  for (const Published& each : all) {
    const Result<ModelConfig> read = load_text(each.text);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    const ModelConfig& config = read.value();
    EXPECT_EQ(config.n_kv_heads, each.n_kv_heads);
    EXPECT_EQ(config.head_dim, each.head_dim);
    EXPECT_EQ(config.max_positions, each.max_positions);
    EXPECT_EQ(config.window,
              std::vector<int32_t>(static_cast<size_t>(config.n_layers), each.window));
    EXPECT_EQ(config.rope.theta, each.theta);
    EXPECT_EQ(config.tie_word_embeddings, each.tied);
    EXPECT_EQ(config.qkv_bias, each.qkv_bias);
    EXPECT_EQ(config.head_norm, each.head_norm);
    EXPECT_EQ(config.eos_tokens, each.eos);
  }
}

TEST_F(ModelConfigTest, absent_keys_take_the_defaults_of_the_format) {
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
                          "tie_word_embeddings", "bos_token_id", "eos_token_id", "model_type"}) {
    config_.erase(key);
  }
  const ModelConfig config = load(config_).value();
  EXPECT_EQ(config.n_kv_heads, 6);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token, -1);
  EXPECT_TRUE(config.eos_tokens.empty());
}

TEST_F(ModelConfigTest, newer_spellings_are_read) {
  config_.erase("rope_theta");
  config_.erase("rope_scaling");
  config_["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  config_["dtype"] = config_["torch_dtype"];
  config_.erase("torch_dtype");
  config_["layer_types"] = std::vector<std::string>(8, "full_attention");
  config_["eos_token_id"] = {7, 9};
  config_["head_dim"] = 128;  // not hidden_size / n_heads
  const ModelConfig config = load(config_).value();
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.window, std::vector<int32_t>(8, 0));
}

TEST_F(ModelConfigTest, what_older_files_say_and_nobody_reads_changes_nothing) {
  Json config = config_;
  config["pretraining_tp"] = 2;
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}, {"finetuned", true}};
  const auto with = load(config);
  ASSERT_TRUE(with.ok()) << with.status().to_string();
  config.erase("pretraining_tp");
  config["rope_scaling"].erase("finetuned");
  EXPECT_EQ(load(config).value().rope.inv_freq, with.value().rope.inv_freq);
}

TEST_F(ModelConfigTest, windows_are_where_each_family_puts_them) {
  const auto window = [&](const char* architecture, const Json& patch) {
    Json changed = config_;
    changed["architectures"] = {architecture};
    changed.erase("model_type");
    changed.merge_patch(patch);
    return load(changed).value().window;
  };
  using Window = std::vector<int32_t>;
  EXPECT_EQ(window("MistralForCausalLM", {{"sliding_window", 100}}), Window(8, 100));
  EXPECT_EQ(window("MistralForCausalLM", Json::object()), Window(8, 4096));  // the class's default
  Json no_window = config_;
  no_window["architectures"] = {"MistralForCausalLM"};
  no_window["model_type"] = "mistral";
  no_window["sliding_window"] = nullptr;
  EXPECT_EQ(load(no_window).value().window, Window(8, 0));
  EXPECT_EQ(window("Qwen2ForCausalLM", {{"sliding_window", 100}, {"attention_bias", nullptr}}),
            Window(8, 0));
  const Json used = {{"sliding_window", 100},
                     {"use_sliding_window", true},
                     {"max_window_layers", 5},
                     {"attention_bias", nullptr}};
  EXPECT_EQ(window("Qwen2ForCausalLM", used), (Window{0, 0, 0, 0, 0, 100, 100, 100}));
  Json listed = used;
  listed["layer_types"] = std::vector<std::string>(8, "full_attention");
  listed["layer_types"][2] = "sliding_attention";
  EXPECT_EQ(window("Qwen3ForCausalLM", listed), (Window{0, 0, 100, 0, 0, 0, 0, 0}));
}

TEST_F(ModelConfigTest, every_family_has_its_biases_and_norms) {
  const auto of = [&](const char* architecture, const Json& patch) {
    Json changed = config_;
    changed["architectures"] = {architecture};
    changed.erase("model_type");
    changed.erase("attention_bias");
    changed.merge_patch(patch);
    const ModelConfig c = load(changed).value();
    return std::vector<bool>{c.qkv_bias, c.o_bias, c.mlp_bias, c.head_norm};
  };
  using Flags = std::vector<bool>;
  EXPECT_EQ(of("LlamaForCausalLM", Json::object()), (Flags{false, false, false, false}));
  EXPECT_EQ(of("LlamaForCausalLM", {{"attention_bias", true}}), (Flags{true, true, false, false}));
  EXPECT_EQ(of("LlamaForCausalLM", {{"mlp_bias", true}}), (Flags{false, false, true, false}));
  EXPECT_EQ(of("MistralForCausalLM", Json::object()), (Flags{false, false, false, false}));
  EXPECT_EQ(of("Qwen2ForCausalLM", Json::object()), (Flags{true, false, false, false}));
  EXPECT_EQ(of("Qwen3ForCausalLM", Json::object()), (Flags{false, false, false, true}));
  EXPECT_EQ(of("Qwen3ForCausalLM", {{"attention_bias", true}}), (Flags{true, true, false, true}));
  Json qwen3 = config_;
  qwen3["architectures"] = {"Qwen3ForCausalLM"};
  qwen3["model_type"] = "qwen3";
  qwen3.erase("head_dim");
  EXPECT_EQ(load(qwen3).value().head_dim, 128);  // the class's default, not hidden_size / heads
}

TEST_F(ModelConfigTest, rotary_scaling_reaches_as_far_as_it_says) {
  const auto rope = [&](const Json& block) {
    Json changed = config_;
    changed["rope_scaling"] = block;
    return load(changed).value();
  };
  EXPECT_EQ(rope({{"type", "linear"}, {"factor", 4.0}}).max_positions, 8192);
  const ModelConfig yarn =
      rope({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}});
  EXPECT_EQ(yarn.max_positions, 4096);
  EXPECT_FLOAT_EQ(yarn.rope.scale, static_cast<float>(0.1 * std::log(4.0) + 1));
  const ModelConfig llama3 = rope({{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 512}});
  EXPECT_EQ(llama3.max_positions, 2048);
  // High frequencies stay, low ones are divided.
  EXPECT_EQ(llama3.rope.inv_freq.front(), 1.0f);
  const float slowest = 1.0f / std::pow(10000.0f, 62.0f / 64.0f);
  EXPECT_FLOAT_EQ(llama3.rope.inv_freq.back(), slowest / 8);
}

TEST_F(ModelConfigTest, what_cannot_be_computed_is_refused_by_name) {
  struct Refusal {
    std::function<void(Json&)> change;
    const char* message;
  };
  const std::vector<Refusal> refusals = {
      {[](Json& c) { c["architectures"] = {"GemmaForCausalLM"}; },
       R"(key 'architectures': found '["GemmaForCausalLM"]', supported: ["LlamaForCausalLM"], )"
       R"(["MistralForCausalLM"], ["Qwen2ForCausalLM"], ["Qwen3ForCausalLM"])"},
      {[](Json& c) {
         c["architectures"] = {"LlamaForCausalLM", "X"};
       },
       "'architectures'"},
      {[](Json& c) { c["architectures"] = "LlamaForCausalLM"; }, "'architectures'"},
      {[](Json& c) { c.erase("architectures"); }, "'architectures': found 'null'"},
      {[](Json& c) { c["rope_interleaved"] = true; }, "'rope_interleaved': found 'true'"},
      {[](Json& c) { c["is_encoder_decoder"] = true; }, "'is_encoder_decoder': found 'true'"},
      {[](Json& c) { c["model_type"] = "mistral"; },
       "'model_type': found '\"mistral\"', supported: \"llama\""},
      {[](Json& c) { c["hidden_act"] = "gelu"; }, "'hidden_act'"},
      {[](Json& c) {
         c["architectures"] = {"MistralForCausalLM"};
         c["model_type"] = "mistral";
         c["attention_bias"] = true;
       },
       "'attention_bias': found 'true', supported: false"},
      {[](Json& c) {
         c["architectures"] = {"Qwen2ForCausalLM"};
         c["model_type"] = "qwen2";
       },
       "'attention_bias': found 'false', supported: true"},
      {[](Json& c) {
         c["architectures"] = {"Qwen3ForCausalLM"};
         c["model_type"] = "qwen3";
         c["mlp_bias"] = true;
       },
       "'mlp_bias'"},
      {[](Json& c) { c["sliding_window"] = 4096; },
       "'sliding_window': found '4096', supported: null"},
      {[](Json& c) { c["use_sliding_window"] = true; }, "'use_sliding_window'"},
      {[](Json& c) {
         c["layer_types"] = std::vector<std::string>(8, "full_attention");
         c["layer_types"][3] = "sliding_attention";  // a Llama has no window
       },
       "'layer_types'"},
      {[](Json& c) { c["layer_types"] = {"full_attention"}; },
       "supported: a list of 8 times \"full_attention\""},
      {[](Json& c) { c["layer_types"] = 3; }, "'layer_types'"},
      {[](Json& c) {
         c["architectures"] = {"MistralForCausalLM"};
         c["model_type"] = "mistral";
         c["sliding_window"] = 64;
         c["layer_types"] = std::vector<std::string>(8, "full_attention");
       },
       "supported: a list of 8 times \"sliding_attention\""},
      {[](Json& c) {
         c["rope_parameters"] = {{"rope_type", "default"}};
         c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
       },
       "supported: null beside 'rope_parameters', or the very same"},
      {[](Json& c) {
         c["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
       },
       "'rope_scaling': found '{\"factor\":2.0,\"type\":\"dynamic\"}', supported: rope_type default, "
       "linear, llama3 or yarn"},
      {[](Json& c) { c["rope_scaling"] = 2; }, "'rope_scaling'"},
      {[](Json& c) {
         c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 3}};
       },
       "'rope_scaling', 'beta_fast': found '3', supported: this key is unknown for rope_type linear"},
      {[](Json& c) {
         c["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
       },
       "'rope_parameters', 'partial_rotary_factor': found '0.5', supported: 1"},
      {[](Json& c) {
         c["quantization_config"] = {{"quant_method", "bitsandbytes"}};
       },
       "'quantization_config': key 'quant_method': found 'bitsandbytes': NF4, FP4 and LLM.int8() "
       "are not read"},
      {[](Json& c) { c["logit_scale"] = 2.0; },
       "'logit_scale': found '2.0', supported: this key is unknown"},
      {[](Json& c) { c["head_dim"] = 40; }, "'head_dim': found 40, supported: multiples of 16"},
  };
  for (const Refusal& refusal : refusals) {
    Json changed = config_;
    refusal.change(changed);
    const Status status = load(changed).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find(refusal.message), std::string::npos) << status.message();
    EXPECT_EQ(status.message().rfind(root_ + "/config.json: key ", 0), 0u) << status.message();
  }
}

TEST_F(ModelConfigTest, rotary_scaling_out_of_range_is_refused_by_name) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 512}};
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-1), Json("1"), Json(1e300), Json(Json::array())}) {
      Json changed = config_;
      changed["rope_scaling"] = llama3;
      changed["rope_scaling"][key] = value;
      const Status status = load(changed).status();
      EXPECT_EQ(status.code(), Code::kDataLoss) << key << " " << value;
      EXPECT_NE(status.message().find(std::string("'") + key + "'"), std::string::npos)
          << status.message();
    }
    Json missing = config_;
    missing["rope_scaling"] = llama3;
    missing["rope_scaling"].erase(key);
    EXPECT_NE(
        load(missing).status().message().find(std::string("the key '") + key + "' is missing"),
        std::string::npos);
  }
  Json crossed = config_;
  crossed["rope_scaling"] = llama3;
  crossed["rope_scaling"]["high_freq_factor"] = 1.0;
  EXPECT_NE(
      load(crossed).status().message().find("expected more than low_freq_factor 1.0, found 1.0"),
      std::string::npos)
      << load(crossed).status().message();
}

TEST_F(ModelConfigTest, values_out_of_range_are_refused_by_name) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-1), Json(4294967297), Json(UINT64_MAX), Json(1.5),
                              Json("8"), Json(true), Json(Json::array({1})), Json(1e30)}) {
      Json changed = config_;
      changed[key] = value;
      const Status status = load(changed).status();
      EXPECT_EQ(status.code(), Code::kDataLoss) << key << " " << value;
      EXPECT_NE(status.message().find("key '" + std::string(key) + "'"), std::string::npos)
          << status.message();
    }
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    Json changed = config_;
    changed.erase(key);
    EXPECT_EQ(load(changed).status().message(),
              root_ + "/config.json: the key '" + key + "' is missing");
  }
  const std::vector<std::pair<const char*, Json>> others = {
      {"num_key_value_heads", 4}, {"num_key_value_heads", 7}, {"rms_norm_eps", 0},
      {"rms_norm_eps", -1e-5},    {"rms_norm_eps", 1},        {"rms_norm_eps", "x"},
      {"rope_theta", 0},          {"rope_theta", 1e13},       {"rope_theta", -1},
      {"rope_theta", "1"},        {"bos_token_id", 4096},     {"bos_token_id", -1},
      {"eos_token_id", 4096},     {"eos_token_id", "1"},      {"tie_word_embeddings", 1}};
  for (const auto& [key, value] : others) {
    Json changed = config_;
    changed[key] = value;
    EXPECT_EQ(load(changed).status().code(), Code::kDataLoss) << key << " " << value;
  }
  config_["eos_token_id"] = {1, -1};
  EXPECT_FALSE(load(config_).ok());
  config_["eos_token_id"] = {1};
  config_["head_dim"] = nullptr;
  config_["hidden_size"] = 385;
  EXPECT_NE(load(config_).status().message().find("'head_dim' is missing"), std::string::npos);
  config_["head_dim"] = 4096;
  config_["num_attention_heads"] = 4096;
  config_["num_key_value_heads"] = 4096;
  EXPECT_NE(load(config_).status().message().find("num_attention_heads * head_dim is 16777216"),
            std::string::npos);
}

TEST_F(ModelConfigTest, a_file_that_is_no_config_is_refused) {
  EXPECT_EQ(load_model_config(root_ + "/none").status().code(), Code::kNotFound);
  for (const char* text : {"", "{", "[]", "null", "7", "{}", "{\"a\":1,\"a\":2}"}) {
    EXPECT_FALSE(load_text(text).ok()) << text;
  }
  const std::string whole = config_.dump();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(load_text(whole.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace specd
