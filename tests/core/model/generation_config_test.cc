#include "core/model/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/json.h"

namespace specd {
namespace {

class GenerationConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_generation_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<GenerationConfig> load(const std::string& text) {
    std::ofstream(root_ + "/generation_config.json") << text;
    eos_ = {1};
    const Status status = load_eos_tokens(root_, 100, eos_);
    if (!status.ok()) return status;
    return load_generation_config(root_);
  }

  std::string root_;
  std::vector<int32_t> eos_;
};

TEST_F(GenerationConfigTest, without_a_file_decoding_is_greedy) {
  std::vector<int32_t> eos{3};
  const GenerationConfig config = load_generation_config(root_).value();
  EXPECT_TRUE(load_eos_tokens(root_, 100, eos).ok());
  EXPECT_EQ(config.temperature, 0);
  EXPECT_EQ(config.repetition_penalty, 1);
  EXPECT_EQ(eos, std::vector<int32_t>{3});
}

TEST_F(GenerationConfigTest, a_link_that_leads_nowhere_is_refused) {
  std::filesystem::create_symlink("blob", root_ + "/generation_config.json");
  std::vector<int32_t> eos;
  for (const Status& status :
       {load_eos_tokens(root_, 100, eos), load_generation_config(root_).status()})
    EXPECT_NE(status.message().find("generation_config.json': cannot open"), std::string::npos);
}

TEST_F(GenerationConfigTest, a_list_of_eos_ids_replaces_those_of_config_json) {
  ASSERT_TRUE(load(R"({"eos_token_id": [1, 5]})").ok());
  EXPECT_EQ(eos_, (std::vector<int32_t>{1, 5}));
  ASSERT_TRUE(load(R"({"eos_token_id": 7})").ok());
  EXPECT_EQ(eos_, std::vector<int32_t>{7});
  ASSERT_TRUE(load(R"({"eos_token_id": null})").ok());
  EXPECT_EQ(eos_, std::vector<int32_t>{1});
}

TEST_F(GenerationConfigTest, a_temperature_holds_where_the_file_asks_for_sampling_the_rest_always) {
  // As Qwen2.5-Instruct writes it, and without its word for sampling.
  const std::string rest =
      R"("temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "typical_p": 0.9,
         "repetition_penalty": 1.05})";
  const GenerationConfig sampled = load(R"({"do_sample": true, )" + rest).value();
  EXPECT_FLOAT_EQ(sampled.temperature, 0.7f);
  EXPECT_FLOAT_EQ(sampled.top_p, 0.8f);
  EXPECT_EQ(sampled.top_k, 20);
  EXPECT_FLOAT_EQ(sampled.min_p, 0.05f);
  EXPECT_FLOAT_EQ(sampled.typical_p, 0.9f);
  EXPECT_FLOAT_EQ(sampled.repetition_penalty, 1.05f);
  const GenerationConfig greedy = load("{" + rest).value();
  EXPECT_EQ(greedy.temperature, 0);
  EXPECT_FLOAT_EQ(greedy.top_p, 0.8f) << "for a request that samples";
  EXPECT_EQ(greedy.top_k, 20);
  EXPECT_FLOAT_EQ(greedy.min_p, 0.05f);
  EXPECT_FLOAT_EQ(greedy.typical_p, 0.9f);
  EXPECT_FLOAT_EQ(greedy.repetition_penalty, 1.05f);
  EXPECT_EQ(load(R"({"do_sample": true})").value().temperature, 1);
  EXPECT_EQ(load(R"({"do_sample": true, "temperature": 0.001})").value().temperature, 0);
}

TEST_F(GenerationConfigTest, what_is_not_applied_is_named) {
  const GenerationConfig config =
      load(
          R"({"no_repeat_ngram_size": 3, "epsilon_cutoff": 0.1, "num_beams": 1, "suppress_tokens": null,
               "transformers_version": "4.40.0", "max_length": 4096})")
          .value();
  EXPECT_EQ(config.ignored,
            (std::vector<std::string>{"epsilon_cutoff 0.1", "no_repeat_ngram_size 3"}));
}

TEST_F(GenerationConfigTest, what_means_nothing_is_not_judged) {
  EXPECT_EQ(load(R"({"do_sample": false, "temperature": 200})").value().temperature, 0);
  const GenerationConfig long_list =
      load(R"({"bad_words_ids": [")" + std::string(2000, 'y') + R"("]})").value();
  EXPECT_LT(long_list.ignored.at(0).size(), 120u);
}

TEST_F(GenerationConfigTest, a_wrong_file_is_refused_by_name) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{", "1:"},
      {"[]", "expected a JSON object"},
      {R"({"eos_token_id": 100})", "'eos_token_id'"},
      {R"({"eos_token_id": ["1"]})", "'eos_token_id'"},
      {R"({"do_sample": true, "temperature": -1})",
       "'temperature': expected from 0.0 to 100.0, found -1.0"},
      {R"({"do_sample": true, "temperature": "warm"})", "'temperature'"},
      {R"({"do_sample": true, "top_p": 1.5})", "'top_p'"},
      {R"({"do_sample": false, "top_k": -1})", "'top_k'"},
      {R"({"do_sample": true, "top_k": 2.5})", "'top_k'"},
      {R"({"do_sample": true, "min_p": 2})", "'min_p'"},
      {R"({"typical_p": 1.01})", "'typical_p'"},
      {R"({"repetition_penalty": 0})",
       "'repetition_penalty': expected from 0.01 to 100.0, found 0.0"},
      {R"({"do_sample": "yes"})", "'do_sample'"}};
  for (const auto& [text, message] : cases) {
    const Status status = load(text).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << text;
    EXPECT_EQ(status.message().rfind(root_ + "/generation_config.json", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace specd
