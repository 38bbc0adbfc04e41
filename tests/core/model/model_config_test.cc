#include "core/model/model_config.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token, 0);
  EXPECT_EQ(config.eos_tokens, std::vector<int32_t>{1});
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
  EXPECT_EQ(config.rope_theta, 10000.0);
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
  config_["layer_types"] = Json::array({"full_attention", "full_attention"});
  config_["eos_token_id"] = {7, 9};
  config_["head_dim"] = 128;  // not hidden_size / n_heads
  const ModelConfig config = load(config_).value();
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(config.head_dim, 128);
}

TEST_F(ModelConfigTest, the_generation_config_says_which_tokens_end_a_text) {
  std::ofstream(root_ + "/generation_config.json")
      << R"({"eos_token_id": [1, 5], "temperature": 0.6})";
  EXPECT_EQ(load(config_).value().eos_tokens, (std::vector<int32_t>{1, 5}));
  std::ofstream(root_ + "/generation_config.json") << R"({"temperature": 0.6})";
  EXPECT_EQ(load(config_).value().eos_tokens, std::vector<int32_t>{1});
  for (const char* bad : {"{", "[]", R"({"eos_token_id": 4096})", R"({"eos_token_id": ["1"]})"}) {
    std::ofstream(root_ + "/generation_config.json") << bad;
    const Status status = load(config_).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << bad;
    EXPECT_NE(status.message().find("generation_config.json"), std::string::npos);
  }
}

TEST_F(ModelConfigTest, what_cannot_be_computed_is_refused_by_name) {
  struct Refusal {
    std::function<void(Json&)> change;
    const char* message;
  };
  const Json llama3 = {{"rope_type", "llama3"}, {"factor", 8.0}};
  const std::vector<Refusal> refusals = {
      {[](Json& c) { c["architectures"] = {"Qwen2ForCausalLM"}; },
       R"(key 'architectures': found '["Qwen2ForCausalLM"]', supported: ["LlamaForCausalLM"])"},
      {[](Json& c) {
         c["architectures"] = {"LlamaForCausalLM", "X"};
       },
       "'architectures'"},
      {[](Json& c) { c["architectures"] = "LlamaForCausalLM"; }, "'architectures'"},
      {[](Json& c) { c.erase("architectures"); }, "'architectures': found 'null'"},
      {[](Json& c) { c["model_type"] = "mistral"; },
       "'model_type': found '\"mistral\"', supported: \"llama\""},
      {[](Json& c) { c["hidden_act"] = "gelu"; }, "'hidden_act'"},
      {[](Json& c) { c["attention_bias"] = true; },
       "'attention_bias': found 'true', supported: false"},
      {[](Json& c) { c["mlp_bias"] = true; }, "'mlp_bias'"},
      {[](Json& c) { c["sliding_window"] = 4096; },
       "'sliding_window': found '4096', supported: null"},
      {[](Json& c) { c["use_sliding_window"] = true; }, "'use_sliding_window'"},
      {[](Json& c) {
         c["layer_types"] = {"full_attention", "sliding_attention"};
       },
       "'layer_types'"},
      {[](Json& c) { c["layer_types"] = 3; }, "'layer_types'"},
      {[](Json& c) { c["pretraining_tp"] = 2; }, "'pretraining_tp'"},
      {[&](Json& c) { c["rope_scaling"] = llama3; }, "'rope_scaling': found '{\"factor\":8.0"},
      {[](Json& c) {
         c["rope_scaling"] = {{"type", "linear"}};
       },
       "'rope_scaling'"},
      {[](Json& c) { c["rope_scaling"] = 2; }, "'rope_scaling'"},
      {[&](Json& c) { c["rope_parameters"] = llama3; }, "'rope_parameters'"},
      {[](Json& c) {
         c["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
       },
       "'rope_parameters'"},
      {[](Json& c) {
         c["quantization_config"] = {{"bits", 4}};
       },
       "'quantization_config'"},
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
