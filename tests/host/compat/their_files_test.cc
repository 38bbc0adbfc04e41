// The daemon on the files of other programs, as their users have them, with the small models of the tree.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/host/compat/compat_rig.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

class TheirFiles : public testing::Test {
 protected:
  TheirFiles() {
    folder_.download("meta-llama/Llama-3.1-8B-Instruct", kZoo / "pico-target");
    folder_.download("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", kZoo / "pico-eagle3");
    folder_.download("yuhuili/EAGLE-LLaMA3-Instruct-8B", kZoo / "pico-eagle2");
    folder_.download("org/draft", kZoo / "pico-draft");
    folder_.download("org/medusa", kZoo / "pico-medusa");
    folder_.download("org/redrafter", kZoo / "pico-redrafter");
  }
  // What a test changes beside their files: where it listens, and what it may not share with others.
  std::vector<std::string> settings() const {
    return {"listen=unix:" + daemon_.socket(),
            "http.listen=127.0.0.1:0",
            "kserve.listen=127.0.0.1:0",
            "kserve.metrics_listen=127.0.0.1:0",
            "engine.max_sequences=4",
            "engine.threads=2",
            "plugins.cache_directory=" + (daemon_.folder() / "cache").string()};
  }
  std::vector<std::string> words(const std::string& command,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> all{SPECD_BINARY, command};
    for (const std::string& setting : settings()) all.insert(all.end(), {"--set", setting});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void serve(std::vector<std::string> more) {
    more.insert(more.begin(), {"--model-repository", folder_.repository()});
    daemon_.spawn_words(words("serve", more),
                        [&] { setenv("HF_HUB_CACHE", folder_.hub().c_str(), 1); });
    ASSERT_TRUE(daemon_.wait_ready()) << daemon_.output();
  }
  std::pair<int, std::string> check(const std::vector<std::string>& more) const {
    std::string line = "HF_HUB_CACHE='" + folder_.hub() + "'";
    for (const std::string& word : words("check", more)) line += " '" + word + "'";
    return run_command(line);
  }
  // The tokens of the default route are those of plain decoding, and it drafts.
  void expect_drafts(const std::string& route) {
    Client client = daemon_.client();
    const auto plain = client.generate(make_request("off", 24), {});
    const auto drafted = client.generate(make_request("", 24), {});
    ASSERT_TRUE(plain.ok() && drafted.ok()) << daemon_.output();
    EXPECT_EQ(drafted.value().started.route(), route);
    EXPECT_EQ(drafted.value().token_ids, plain.value().token_ids);
    EXPECT_GT(drafted.value().finished.speculation().total_accepted_draft_tokens(), 0);
  }

  const fs::path kZoo = fs::path(SPECD_SOURCE_DIR) / "configs/zoo";
  CompatFolder folder_;
  Daemon daemon_;
};

TEST_F(TheirFiles, the_tutorials_eagle3_model_is_served_unchanged) {
  folder_.write("repository/tensorrt_llm/config.pbtxt", "backend: \"python\"\n");
  folder_.write("repository/tensorrt_llm/1/model.yaml", kTutorialEagle3);
  serve({});
  expect_drafts("eagle3");
  EXPECT_EQ(daemon_.client().models().value().models(0).name(), "tensorrt_llm");
  // A longer draft, and again.
  std::string text = kTutorialEagle3;
  text.replace(text.find("max_draft_len: 3"), 16, "max_draft_len: 4");
  folder_.write("repository/tensorrt_llm/1/model.yaml", text);
  const auto reloaded = daemon_.client().reload({});
  ASSERT_TRUE(reloaded.ok()) << reloaded.status().text();
  expect_drafts("eagle3");
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

// Both programs begin with the same variables.
TEST_F(TheirFiles, specctl_finds_the_daemon_that_was_told_no_socket) {
  folder_.write("repository/llama/1/model.yaml", kTutorialEagle3);
  serve({});
  const std::string variables = "env -u SPECD_SOCKET -u RUNTIME_DIRECTORY XDG_RUNTIME_DIR='";
  const std::string command =
      "' " + (fs::path(SPECD_BINARY).parent_path() / "specctl").string() + " status";
  const auto [code, text] = run_command(variables + daemon_.folder().string() + command);
  EXPECT_EQ(code, 0) << text;
  const auto [other, missing] = run_command(variables + folder_.path().string() + command);
  EXPECT_EQ(other, 4) << missing;
  EXPECT_NE(missing.find("/run/specd/specd.sock"), std::string::npos) << missing;
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(TheirFiles, the_tutorials_draft_model_is_served_unchanged) {
  folder_.write("repository/tensorrt_llm/1/model.yaml", kTutorialDraftTarget);
  serve({"--set", "draft_models[0].path=" + (kZoo / "pico-draft").string()});
  expect_drafts("draft_target");
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(TheirFiles, a_speculative_config_of_vllm_is_served) {
  folder_.write_json(
      R"({"model": "meta-llama/Llama-3.1-8B-Instruct", "disable_log_requests": true})");
  serve({"--speculative-config",
         R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,)"
         R"( "prompt_lookup_min": 2})"});
  expect_drafts("prompt_lookup");
  EXPECT_NE(daemon_.output().find(
                "keys without a meaning here are ignored (--strict-config refuses them): "),
            std::string::npos)
      << daemon_.output();
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

// The drafters take the keys that the methods become.
TEST_F(TheirFiles, every_method_passes_the_check_of_its_plugin) {
  const std::string target = "model: meta-llama/Llama-3.1-8B-Instruct\nspeculative_config:\n";
  const std::string eagle3 = "  speculative_model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B\n";
  for (
      const std::string& lines :
      {"  decoding_type: DraftTarget\n  max_draft_len: 4\n  speculative_model: org/draft\n  max_concurrency: 2\n" +
           std::string(),
       "  decoding_type: Eagle\n  max_draft_len: 4\n" + eagle3,
       "  decoding_type: Eagle\n  max_draft_len: 4\n  speculative_model: yuhuili/EAGLE-LLaMA3-Instruct-8B\n" +
           std::string(),
       "  decoding_type: Eagle3\n  max_draft_len: 5\n  use_dynamic_tree: true\n  dynamic_tree_max_topK: 4\n  "
       "max_total_draft_tokens: 24\n" +
           eagle3,
       "  decoding_type: Eagle3\n  eagle_choices: [[0], [0, 0], [1]]\n  eagle3_layers_to_capture: [1, 3, 4]\n" +
           eagle3,
       std::string("  decoding_type: Lookahead\n"),
       std::string(
           "  decoding_type: Lookahead\n  max_window_size: 2\n  max_ngram_size: 6\n  max_verification_set_size: 1\n"),
       std::string("  decoding_type: Medusa\n  speculative_model: org/medusa\n"),
       std::string(
           "  decoding_type: Medusa\n  max_draft_len: 63\n  medusa_choices: [[0], [1], [0, 0]]\n  speculative_model: org/medusa\n"),
       std::string(
           "  decoding_type: NGram\n  max_draft_len: 4\n  max_matching_ngram_size: 3\n  is_keep_all: True\n  "
           "is_use_oldest: False\n  is_public_pool: False\n"),
       std::string(
           "  decoding_type: ReDrafter\n  max_draft_len: 3\n  speculative_model: org/redrafter\n")}) {
    folder_.write_yaml(target + lines);
    const auto [code, text] =
        check({"--model-repository", folder_.repository(), "--strict-config"});
    EXPECT_EQ(code, 0) << lines << text;
  }
  folder_.write_yaml("model: meta-llama/Llama-3.1-8B-Instruct\n");
  for (
      const char* json :
      {R"({"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1})",
       R"({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3})",
       R"({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 3})",
       R"({"model": "org/medusa", "num_speculative_tokens": 3})",
       R"({"model": "org/redrafter", "num_speculative_tokens": 3})",
       R"({"method": "ngram", "num_speculative_tokens": 5})",
       R"({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0})"}) {
    const auto [code, text] = check({"--model-repository", folder_.repository(), "--strict-config",
                                     "--speculative-config", json});
    EXPECT_EQ(code, 0) << json << text;
  }
}

TEST_F(TheirFiles, what_only_a_plugin_knows_has_the_place_in_their_file) {
  folder_.write_yaml(
      "model: meta-llama/Llama-3.1-8B-Instruct\nspeculative_config:\n  decoding_type: Medusa\n"
      "  speculative_model: org/medusa\n  medusa_choices: [[0], [0, 99]]\n");
  const auto [code, text] = check({"--model-repository", folder_.repository()});
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("model.yaml:5:"), std::string::npos) << text;
  EXPECT_NE(text.find("routes.medusa.drafter.config.choices"), std::string::npos) << text;
}

}  // namespace
}  // namespace specd::host
