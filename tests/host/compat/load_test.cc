// What model.yaml, model.json and --speculative-config become, and what is refused of them.
#include "host/compat/load.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "host/config/config_print.h"
#include "tests/host/compat/compat_rig.h"

namespace specd::host {
namespace {

const std::string kTarget = "meta-llama/Llama-3.1-8B-Instruct";
const std::string kHead = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B";
const std::string kFile = "DIR/repository/llama/1/model.yaml";

class Load : public testing::Test {
 protected:
  Load() {
    folder_.download(kTarget);
    folder_.download(kHead);
    folder_.download("org/draft");
    folder_.download("org/medusa");
  }
  // The route that `lines` of speculative_config become, as JSON; or the error.
  std::string route_of(const std::string& lines) const {
    folder_.write_yaml("model: " + kTarget + "\nspeculative_config:\n" + lines);
    return route();
  }
  std::string route_of_json(const std::string& json) const {
    LoadOptions options;
    options.speculative_config = json;
    folder_.write_yaml("model: " + kTarget + "\n");
    return route(options);
  }
  std::string route(const LoadOptions& options = {}) const {
    const Result<Config> config = folder_.load_repository(options);
    if (!config.ok()) return folder_.told(options);
    const EngineOptions& engine = config.value().engine;
    if (engine.routes.size() != 1) return std::to_string(engine.routes.size()) + " routes";
    const RouteOptions& one = engine.routes.front();
    EXPECT_EQ(engine.default_route, one.name);
    EXPECT_EQ(one.verifier.plugin, "specd.verifier.match");
    EXPECT_EQ(one.drafter.plugin, "specd.drafter." + one.name);
    std::string text =
        one.name + " " + std::to_string(one.draft_nodes_max) + " " + one.drafter.config.dump();
    for (const DraftModelOptions& model : engine.draft_models)
      text += " " + model.name + "=" + model.path;
    return without_folder(text);
  }
  std::string without_folder(std::string text) const {
    const std::string snapshots = std::string("/snapshots/") + kCommit;
    for (const auto& [part, with] :
         {std::pair(folder_.path().string(), std::string("DIR")), {snapshots, std::string("")}})
      for (size_t at = text.find(part); at != std::string::npos; at = text.find(part))
        text.replace(at, part.size(), with);
    return text;
  }
  std::string error_of(const std::string& yaml) const {
    folder_.write_yaml(yaml);
    return without_folder(folder_.told());
  }
  CompatFolder folder_;
};

TEST_F(Load, the_tutorials_file_for_eagle3_is_a_daemon_on_tritons_ports) {
  folder_.write("repository/llama/1/model.yaml", kTutorialEagle3);
  EXPECT_EQ(folder_.told(), "ok");
  const Result<Config> loaded = folder_.load_repository();
  ASSERT_TRUE(loaded.ok());
  const Config& config = loaded.value();
  EXPECT_EQ(config.socket_path, folder_.surroundings().socket);
  EXPECT_EQ(config.http->address + ":" + std::to_string(config.http->port), "127.0.0.1:8000");
  EXPECT_EQ(config.kserve->address + ":" + std::to_string(config.kserve->port), "127.0.0.1:8001");
  EXPECT_TRUE(config.kserve->insecure);
  EXPECT_EQ(config.kserve->metrics_address + ":" + std::to_string(config.kserve->metrics_port),
            "127.0.0.1:8002");
  EXPECT_EQ(config.kserve->model_version, 1);
  EXPECT_EQ(config.engine.model.name, "llama");
  EXPECT_EQ(without_folder(config.engine.model.path),
            "DIR/hub/models--meta-llama--Llama-3.1-8B-Instruct");
  EXPECT_EQ(config.engine.devices, std::vector<std::string>{"auto"});
  EXPECT_EQ(route(),
            R"(eagle3 3 {"draft_tokens":3,"mode":"chain","weights":"DIR/hub/models--yuhuili--)"
            R"(EAGLE3-LLaMA3.1-Instruct-8B"})");
}

TEST_F(Load, what_is_printed_names_the_place_in_their_file_and_is_a_configuration) {
  folder_.write("repository/llama/1/model.yaml", kTutorialEagle3);
  const Result<Config> config = folder_.load_repository();
  ASSERT_TRUE(config.ok()) << config.status().text();
  const std::string printed = print_config(config.value());
  for (const std::string& origin : {std::string("/repository/llama/1/model.yaml:9:18\n"),
                                    std::string("# --model-repository\n")})
    EXPECT_NE(printed.find(origin), std::string::npos) << printed;
  const Result<Config> again = parse_config(printed, (folder_.path() / "c.yaml").string());
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_TRUE(again.value().engine == config.value().engine);
}

TEST_F(Load, the_tutorials_file_for_a_draft_model_takes_its_folder_from_an_option) {
  folder_.write("repository/llama/1/model.yaml", kTutorialDraftTarget);
  EXPECT_EQ(folder_.told(),
            kFile +
                ":10:22: draft_models[0].path: expected a folder with config.json, the weights as "
                "safetensors and tokenizer.json, found nothing at /path/to/draft_model");
  fs::create_directory(folder_.path() / "draft");
  LoadOptions options;
  options.overrides.set = {"draft_models[0].path=" + (folder_.path() / "draft").string()};
  EXPECT_EQ(
      route(options),
      R"(draft_target 3 {"draft_tokens":3,"model":"speculative_model"} speculative_model=DIR/draft)");
}

TEST_F(Load, every_decoding_type_with_a_plugin_becomes_its_route) {
  folder_.download("org/plain-eagle");
  folder_.write("hub/models--org--plain-eagle/blobs/config.json", R"({"model_type": "eagle"})");
  const std::string head = "  speculative_model: " + kHead + "\n";
  const std::string weights =
      R"("weights":"DIR/hub/models--yuhuili--EAGLE3-LLaMA3.1-Instruct-8B"})";
  const std::pair<std::string, std::string> table[] = {
      {"  decoding_type: Draft_Target\n  max_draft_len: 4\n  speculative_model: org/draft\n",
       R"(draft_target 4 {"draft_tokens":4,"model":"speculative_model"} speculative_model=DIR/hub/models--org--draft)"},
      {"  decoding_type: DraftTarget\n  max_draft_len: 4\n  speculative_model_dir: org/draft\n",
       R"(draft_target 4 {"draft_tokens":4,"model":"speculative_model"} speculative_model=DIR/hub/models--org--draft)"},
      {"  decoding_type: Eagle3\n  max_draft_len: 5\n" + head,
       R"(eagle3 5 {"draft_tokens":5,"mode":"chain",)" + weights},
      {"  decoding_type: Eagle\n  max_draft_len: 5\n  max_total_draft_tokens: 5\n  eagle3_one_model: true\n" +
           head,
       R"(eagle3 5 {"draft_tokens":5,"mode":"chain",)" + weights},
      {"  decoding_type: Eagle\n  max_draft_len: 5\n  speculative_model: org/plain-eagle\n",
       R"(eagle 5 {"draft_tokens":5,"mode":"chain","weights":"DIR/hub/models--org--plain-eagle"})"},
      {"  decoding_type: Eagle3\n  max_draft_len: 6\n  use_dynamic_tree: True\n  dynamic_tree_max_topK: 8\n"
       "  max_total_draft_tokens: 40\n" +
           head,
       R"(eagle3 40 {"depth":5,"mode":"dynamic","top_k":8,"total_token":41,)" + weights},
      {"  decoding_type: Eagle3\n  max_draft_len: 2\n  eagle_choices: [[0], [1], [0, 0]]\n  "
       "eagle3_layers_to_capture: [1, 3, 4]\n" +
           head,
       R"(eagle3 3 {"choices":[[0],[1],[0,0]],"layer_ids":[1,3,4],"layer_ids_are":"outputs","mode":"static",)" +
           weights},
      {"  decoding_type: Medusa\n  speculative_model: org/medusa\n",
       R"(medusa 63 {"weights":"DIR/hub/models--org--medusa"})"},
      {"  decoding_type: Medusa\n  max_draft_len: 63\n  medusa_choices: [[0], [0, 0]]\n  speculative_model: org/medusa\n",
       R"(medusa 2 {"choices":[[0],[0,0]],"weights":"DIR/hub/models--org--medusa"})"},
      {"  decoding_type: Lookahead\n  max_window_size: 7\n  max_ngram_size: 5\n  max_verification_set_size: 7\n",
       R"(lookahead 55 {"max_ngram_size":5,"max_verification_set_size":7,"max_window_size":7})"},
      {"  decoding_type: Lookahead\n",
       R"(lookahead 15 {"max_ngram_size":3,"max_verification_set_size":4,"max_window_size":4})"},
      {"  decoding_type: NGram\n  max_draft_len: 6\n  max_matching_ngram_size: 3\n  is_keep_all: True\n"
       "  is_use_oldest: False\n  is_public_pool: false\n",
       R"(prompt_lookup 6 {"is_keep_all":true,"is_public_pool":false,"is_use_oldest":false,"max_draft_len":6,)"
       R"("max_matching_ngram_size":3})"},
      {"  decoding_type: ReDrafter\n  max_draft_len: 4\n  speculative_model: org/medusa\n",
       R"(redrafter 20 {"beams":5,"draft_tokens":4,"weights":"DIR/hub/models--org--medusa"})"},
  };
  for (const auto& [lines, expected] : table) {
    EXPECT_EQ(route_of(lines), expected) << lines;
    EXPECT_EQ(folder_.told(), "ok") << lines;
  }
}

TEST_F(Load, every_method_of_vllm_with_a_plugin_becomes_its_route) {
  const std::pair<std::string, std::string> table[] = {
      {R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2})",
       R"(prompt_lookup 4 {"num_speculative_tokens":4,"prompt_lookup_max":5,"prompt_lookup_min":2})"},
      {R"({"model": "[ngram]", "num_speculative_tokens": 4})",
       R"(prompt_lookup 4 {"num_speculative_tokens":4})"},
      {R"({"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1})",
       R"(draft_target 5 {"draft_tokens":5,"model":"speculative_model"} speculative_model=DIR/hub/models--org--draft)"},
      {R"({"model": "org/draft", "num_speculative_tokens": 5})",
       R"(draft_target 5 {"draft_tokens":5,"model":"speculative_model"} speculative_model=DIR/hub/models--org--draft)"},
      {R"({"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3})",
       R"(eagle3 3 {"draft_tokens":3,"mode":"chain","weights":"DIR/hub/models--org--draft"})"},
      {R"({"method": "eagle", "model": ")" + kHead + R"(", "num_speculative_tokens": 3})",
       R"(eagle3 3 {"draft_tokens":3,"mode":"chain","weights":"DIR/hub/models--yuhuili--EAGLE3-LLaMA3.1-Instruct-8B"})"},
      {R"({"method": "eagle", "model": "org/draft", "num_speculative_tokens": 3})",
       R"(eagle 3 {"draft_tokens":3,"mode":"chain","weights":"DIR/hub/models--org--draft"})"},
      {R"({"method": "medusa", "model": "org/medusa", "num_speculative_tokens": 3})",
       R"(medusa 3 {"choices":[[0],[0,0],[0,0,0]],"weights":"DIR/hub/models--org--medusa"})"},
      {R"({"method": "redrafter", "model": "org/medusa", "num_speculative_tokens": 3})",
       R"(redrafter 15 {"beams":5,"draft_tokens":3,"weights":"DIR/hub/models--org--medusa"})"},
      {R"({"method": "suffix"})", R"(suffix 24 {"max_spec_tokens":24,"max_tree_depth":24})"},
      {R"({"method": "suffix", "num_speculative_tokens": 12, "suffix_decoding_max_tree_depth": 30,
           "suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.2})",
       R"(suffix 12 {"max_spec_factor":2.0,"max_spec_tokens":12,"max_tree_depth":30,"min_token_prob":0.2})"},
  };
  for (const auto& [json, expected] : table) EXPECT_EQ(route_of_json(json), expected) << json;
}

TEST_F(Load, a_model_without_a_method_is_what_its_config_says) {
  const std::pair<std::string, std::string> table[] = {
      {R"({"architectures": ["LlamaForCausalLMEagle3"]})", "eagle3"},
      {R"({"draft_vocab_size": 32000})", "eagle3"},
      {R"({"model_type": "eagle"})", "eagle"},
      {R"({"architectures": ["EagleLlamaForCausalLM"]})", "eagle"},
      {R"({"model_type": "medusa"})", "medusa"},
      {R"({"model_type": "recurrent_drafting_drafter"})", "redrafter"},
      {R"({"model_type": "llama", "architectures": [1]})", "draft_target"},
  };
  for (const auto& [config, expected] : table) {
    folder_.write("hub/models--org--draft/blobs/config.json", config);
    const std::string made =
        route_of_json(R"({"model": "org/draft", "num_speculative_tokens": 3})");
    EXPECT_EQ(made.substr(0, made.find(' ')), expected) << config;
  }
  folder_.write("hub/models--org--draft/blobs/config.json", R"({"model_type": "mlp_speculator"})");
  EXPECT_EQ(
      route_of_json(R"({"model": "org/draft", "num_speculative_tokens": 3})"),
      "--speculative-config:1:11: model: expected a method that specd has a plugin for: draft_model, eagle, "
      "eagle3, medusa, ngram, redrafter, suffix; found 'mlp_speculator'");
  folder_.write("hub/models--org--draft/blobs/config.json", std::string(100, '['));
  const std::string deep = route_of_json(R"({"model": "org/draft", "num_speculative_tokens": 3})");
  EXPECT_TRUE(deep.starts_with("--speculative-config:1:11: model: ")) << deep;
  EXPECT_NE(deep.find("config.json:1:"), std::string::npos) << deep;
}

TEST_F(Load, a_method_without_a_plugin_is_refused_with_those_that_have_one) {
  EXPECT_EQ(
      route_of("  decoding_type: MTP\n"),
      kFile +
          ":3:18: speculative_config.decoding_type: expected a method that specd has a plugin for: "
          "Draft_Target, Eagle, Eagle3, Lookahead, Medusa, NGram, ReDrafter; found 'MTP'");
  EXPECT_EQ(
      route_of("  decoding_type: Eagle4\n"),
      kFile +
          ":3:18: speculative_config.decoding_type: expected a method that specd has a plugin for: "
          "Draft_Target, Eagle, Eagle3, Lookahead, Medusa, NGram, ReDrafter; found 'Eagle4'; did you mean "
          "'Eagle'?");
  EXPECT_EQ(
      route_of_json(R"({"method": "mtp", "num_speculative_tokens": 1})"),
      "--speculative-config:1:12: method: expected a method that specd has a plugin for: draft_model, eagle, "
      "eagle3, medusa, ngram, redrafter, suffix; found 'mtp'");
}

TEST_F(Load, what_is_wrong_in_a_model_yaml_is_told_with_its_place) {
  const std::string model = "model: " + kTarget + "\n";
  const std::string spec = model + "speculative_config:\n  decoding_type: Draft_Target\n";
  const std::pair<std::string, std::string> table[] = {
      {"", ":1:1: the file is empty"},
      {"- a\n", ":1:1: expected a mapping, found a list"},
      {"backend: pytorch\n", ":1:1: model: missing; it is required"},
      {"model: [a]\n", ":1:8: model: expected text, found a list"},
      {"model: 7\n", ":1:8: model: expected text; quotes make text of it, found '7'"},
      {"model: &a x\nbackend: *a\n",
       ":1:8: anchors (&name) are not supported; write the value out"},
      {"model: *a\n", ":1:8: "},
      {model + "model: x\n", ":2:1: duplicate key 'model'; first given at line 1"},
      {model + "speculative_config:\n\tdecoding_type: NGram\n",
       ":3:15: not YAML: illegal map value; indent with spaces, YAML takes no tabs"},
      {"model: !!python/object:os.system x\n", ":1:8: tags ("},
      {"model: ../../../etc\n",
       ":1:8: model: expected a path in the repository, found '../../../etc', which leads "
       "to 'DIR/etc'; write a folder elsewhere as an absolute path"},
      {"model: org/../draft\n",
       ":1:8: model: expected the name of a model on Hugging Face's hub, such as ORG/NAME, or a "
       "folder: an absolute path or one that begins with ./; found 'org/../draft'"},
      {"model: org/other\n",
       ":1:8: model: expected the model 'org/other' in the Hugging Face cache 'DIR/hub', found "
       "nothing; specd downloads nothing: run `hf download org/other`; a folder of this machine is "
       "written as an absolute path or begins with ./"},
      {"model: org/draft\nrevision: ../x\n",
       ":2:11: revision: expected a branch, a tag or a commit, found '../x'"},
      {"model: /nowhere\n",
       ":1:8: model.path: expected a folder with config.json, the weights as safetensors and "
       "tokenizer.json, found nothing at /nowhere"},
      {model + "tensor_parallel_size: two\n",
       ":2:23: tensor_parallel_size: expected a whole number in [1, 8], found 'two'"},
      {model + "triton_config: 3\n", ":2:16: triton_config: expected a mapping, found '3'"},
      {model + "triton_config: {max_batch_size: 0, decoupled: maybe}\n",
       ":2:47: triton_config.decoupled: expected true or false, found 'maybe'"},
      {model + "kv_cache_config: {free_gpu_memory_fraction: 2}\n",
       ":2:45: kv_cache_config.free_gpu_memory_fraction: expected a number of more than 0 and at most 1, found '2'"},
      {model + "speculative_config: []\n",
       ":2:21: speculative_config: expected a mapping, found a list"},
      {model + "speculative_config: {max_draft_len: 3}\n",
       ":2:21: speculative_config.decoding_type: missing; it is required"},
      {spec + "  speculative_model: org/draft\n",
       ":3:3: speculative_config.max_draft_len: missing; it is required"},
      {spec + "  max_draft_len: 3\n",
       ":3:3: speculative_config.speculative_model: missing; it is required"},
      {spec + "  max_draft_len: 65\n  speculative_model: org/draft\n",
       ":4:18: speculative_config.max_draft_len: expected a whole number in [1, 64], found '65'"},
      {spec + "  max_draft_len: '3'\n  speculative_model: org/draft\n",
       ":4:18: speculative_config.max_draft_len: expected a whole number in [1, 64], found text '3'"},
      {model + "speculative_config: {decoding_type: Eagle3, speculative_model: " + kHead +
           ", max_draft_len: 3, use_dynamic_tree: true, eagle_choices: [[0]]}\n",
       ":2:158: speculative_config.eagle_choices: expected no fixed tree beside use_dynamic_tree"},
      {model +
           "speculative_config: {decoding_type: Medusa, speculative_model: org/medusa, medusa_choices: 3}\n",
       ":2:92: speculative_config.medusa_choices: expected a list of paths such as [[0], [0, 0], [1]], found '3'"},
      {model +
           "speculative_config: {decoding_type: Medusa, speculative_model: org/medusa, max_draft_len: 2, "
           "medusa_choices: [[0], [0, 0], [1]]}\n",
       ":2:110: speculative_config.medusa_choices: expected at most 2 paths, which max_draft_len says, found 3; "
       "leave out the least likely"},
  };
  for (const auto& [yaml, expected] : table) {
    const std::string told = error_of(yaml);
    const bool is_front = expected.ends_with(' ') || expected.ends_with('(');
    EXPECT_TRUE(told == kFile + expected || (is_front && told.starts_with(kFile + expected)))
        << yaml << told << "\n"
        << expected;
  }
  EXPECT_TRUE(error_of(model + "a: " + std::string(40, '[') + std::string(40, ']') + "\n")
                  .starts_with(kFile + ":2:35: nested deeper than 32 levels"));
  EXPECT_TRUE(error_of(std::string(kYamlBytesMax + 1, ' ')).find("bytes") != std::string::npos);
}

TEST_F(Load, more_paths_than_the_engine_takes_are_refused) {
  const int64_t most = EngineLimits::kDraftNodes;
  std::string paths = "[0]";
  for (int64_t i = 1; i < most; ++i) paths += ", [" + std::to_string(i) + "]";
  const std::string methods[] = {"Medusa, speculative_model: org/medusa, medusa_choices: [",
                                 "Eagle3, speculative_model: " + kHead + ", eagle_choices: ["};
  for (const std::string& method : methods) {
    const std::string front =
        "model: " + kTarget +
        "\nmax_num_tokens: 4096\nspeculative_config: {decoding_type: " + method;
    EXPECT_EQ(error_of(front + paths + "]}\n"), "ok") << method;
    const std::string told = error_of(front + paths + ", [0, 0]]}\n");
    EXPECT_TRUE(told.ends_with("_choices: expected at most " + std::to_string(most) +
                               " paths, what the engine takes, found " + std::to_string(most + 1) +
                               "; leave out the least likely"))
        << told;
  }
}

TEST_F(Load, the_batch_size_that_turns_drafts_off_means_what_it_means_there) {
  LoadOptions options;
  const auto option = [&](const std::string& n) {
    options.speculative_config =
        R"({"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": )" + n + "}";
    return options;
  };
  folder_.write_yaml(
      "model: " + kTarget +
      "\nspeculative_config: {decoding_type: NGram, max_draft_len: 3, max_concurrency: 4}\n");
  const auto most = [&](const LoadOptions& given) {
    return folder_.load_repository(given).value().engine.routes.front().disable_by_batch_size;
  };
  EXPECT_EQ(most({}), 4) << "TensorRT-LLM drafts for as many";
  EXPECT_EQ(most(option("4")), 3) << "vLLM drafts for fewer";
  EXPECT_EQ(most(option("2")), 1);
  for (const char* refused : {"0", "1"})
    EXPECT_TRUE(
        folder_.told(option(refused))
            .starts_with("--speculative-config:1:75: disable_by_batch_size: expected a whole "
                         "number in [2, "))
        << folder_.told(option(refused));
}

TEST_F(Load, a_path_of_their_file_stays_in_the_repository_unless_it_is_absolute) {
  fs::create_directories(folder_.path() / "repository/llama/weights");
  folder_.write_yaml("model: ../weights\n");
  EXPECT_EQ(folder_.load_repository().value().engine.model.path,
            folder_.repository() + "/llama/weights");
  fs::create_directory(folder_.path() / "outside");
  fs::create_directory_symlink(folder_.path() / "outside",
                               folder_.path() / "repository/llama/link");
  EXPECT_EQ(
      error_of("model: ../link\n"),
      kFile +
          ":1:8: model: expected a path in the repository, found '../link', which leads to 'DIR/outside'; "
          "write a folder elsewhere as an absolute path");
  EXPECT_EQ(error_of("model: " + (folder_.path() / "outside").string() + "\n"), "ok");
}

TEST_F(Load, a_folder_that_cannot_be_a_name_or_a_version_here_is_refused) {
  folder_.write("repository/my model/1/model.yaml", "model: " + kTarget + "\n");
  EXPECT_EQ(
      folder_.told(),
      "--model-repository: model.name: expected a name of at most 64 letters, digits, '_', '-' "
      "or '.', found text 'my model'");
  fs::rename(folder_.path() / "repository/my model", folder_.path() / "repository/m");
  fs::rename(folder_.path() / "repository/m/1", folder_.path() / "repository/m/99999999999");
  EXPECT_EQ(folder_.told(),
            "--model-repository: kserve.model_version: expected a whole number in [1, 2147483647], "
            "found '99999999999'");
}

TEST_F(Load, a_version_that_was_chosen_among_several_is_told) {
  folder_.write_yaml("model: " + kTarget + "\n");
  folder_.write("repository/llama/3/model.yaml", "model: " + kTarget + "\n");
  EXPECT_EQ(
      folder_.told(),
      "ok\n'DIR/repository/llama' has the versions 1, 3. specd serves one of them, the highest, unless "
      "--load-model NAME/VERSION says another");
  EXPECT_EQ(folder_.load_repository().value().model_version(), 3);
}

TEST_F(Load, other_keys_of_theirs_become_ours) {
  folder_.write_yaml(
      "model: " + kTarget +
      "\nmax_batch_size: 8\nmax_num_tokens: 1024\ndtype: auto\nkv_cache_config: {free_gpu_memory_fraction: "
      "0.5, enable_block_reuse: false}\n");
  EXPECT_EQ(folder_.told(), "ok");
  EngineOptions engine = folder_.load_repository().value().engine;
  EXPECT_EQ(engine.max_sequences, 8);
  EXPECT_EQ(engine.step_tokens_max, 1024);
  EXPECT_EQ(engine.model.kv_memory_share, 0.5);
  EXPECT_FALSE(engine.model.prefix_cache);
  EXPECT_TRUE(engine.routes.empty());
  folder_.write_yaml(
      "model: " + kTarget +
      "\ntensor_parallel_size: 2\npipeline_parallel_size: 2\nkv_cache_config: {max_tokens: 33}\n");
  engine = folder_.load_repository().value().engine;
  EXPECT_EQ(engine.tensor_parallel_size, 2);
  EXPECT_EQ(engine.pipeline_parallel_size, 2);
  EXPECT_EQ(engine.devices, (std::vector<std::string>{"cuda:0", "cuda:1", "cuda:2", "cuda:3"}));
  EXPECT_EQ(engine.model.kv_pages, 3);
}

TEST_F(Load, the_type_of_the_cache_becomes_ours) {
  const auto kv_of = [&](const std::string& keys) {
    folder_.write_yaml("model: " + kTarget + "\nkv_cache_config: {dtype: " + keys + "}\n");
    EXPECT_EQ(folder_.told(), "ok") << keys;
    return folder_.load_repository().value().engine.model.kv_dtype;
  };
  EXPECT_EQ(kv_of("fp8"), KvDType::kF8E4M3);
  EXPECT_EQ(kv_of("auto"), KvDType::kBF16);
}

TEST_F(Load, what_vllm_says_of_8_bits_becomes_ours_or_is_a_matter_of_the_checkpoint) {
  const auto vllm = [&](const std::string& keys) {
    folder_.write_json(R"({"model": ")" + kTarget + "\"" + keys + "}");
  };
  for (const auto& [word, type] : {std::pair{"fp8", KvDType::kF8E4M3},
                                   {"fp8_e4m3", KvDType::kF8E4M3},
                                   {"float16", KvDType::kF16},
                                   {"bfloat16", KvDType::kBF16},
                                   {"auto", KvDType::kBF16}}) {
    vllm(R"(, "kv_cache_dtype": ")" + std::string(word) + R"(", "quantization": "awq_marlin")");
    EXPECT_EQ(folder_.told(), "ok") << word;
    EXPECT_EQ(folder_.load_repository().value().engine.model.kv_dtype, type) << word;
  }
  LoadOptions strict;
  strict.is_strict = true;
  vllm(R"(, "kv_cache_dtype": "fp8_e5m2")");
  EXPECT_NE(folder_.told(strict).find(
                "kv_cache_dtype: expected auto, fp8, fp8_e4m3, bfloat16 or float16, found"),
            std::string::npos)
      << folder_.told(strict);
  vllm(R"(, "quantization": "bitsandbytes")");
  EXPECT_NE(folder_.told(strict).find("quantization: expected the method of a checkpoint"),
            std::string::npos)
      << folder_.told(strict);
  EXPECT_NE(folder_.told().find("has quantization (1:"), std::string::npos) << folder_.told();
}

TEST_F(Load, unknown_keys_get_one_warning_or_are_refused) {
  folder_.write_yaml(
      "model: " + kTarget +
      "\ncuda_graph_config: {}\ndtype: float16\nspeculative_config: {decoding_type: NGram, max_draft_len: 3, "
      "posterior_threshold: 0.1}\ntriton_config: {max_batch_size: 0, decoupled: False, x: 1}\n");
  EXPECT_EQ(
      folder_.told(),
      "ok\nkeys without a meaning here are ignored (--strict-config refuses them): " + kFile +
          " has cuda_graph_config (2:1), dtype (3:1), speculative_config.posterior_threshold (4:62), "
          "triton_config.x (5:54)");
  LoadOptions strict;
  strict.is_strict = true;
  EXPECT_TRUE(folder_.told(strict).starts_with(kFile + ":3:8: dtype: expected auto"))
      << folder_.told(strict);
  folder_.write_yaml("model: " + kTarget + "\ntensor_paralel_size: 2\n");
  EXPECT_EQ(
      folder_.told(strict).substr(0, 120),
      (kFile +
       ":2:1: tensor_paralel_size: unknown key; did you mean 'tensor_parallel_size'? known here: model, "
       "revision, backend")
          .substr(0, 120));
  LoadOptions options;
  options.speculative_config = R"({"method": "suffix", "nothing": 1})";
  EXPECT_EQ(folder_.told(options),
            "ok\nkeys without a meaning here are ignored (--strict-config refuses them): " + kFile +
                " has tensor_paralel_size (2:1); --speculative-config has nothing (1:22)");
  std::string many = "model: " + kTarget + "\n";
  for (int i = 0; i < 1000; ++i) many += "k" + std::to_string(i) + ": 1\n";
  folder_.write_yaml(many);
  EXPECT_TRUE(folder_.told().ends_with("k15 (17:1), and 984 more")) << folder_.told();
}

TEST_F(Load, a_vllm_model_of_the_tutorial_drafts_as_it_says) {
  folder_.write_json(
      "{\n\t\"model\": \"" + kTarget + "\",\n\t\"speculative_model\": \"" + kHead +
      "\",\n\t\"speculative_draft_tensor_parallel_size\": 1,\n\t\"num_speculative_tokens\": 5\n}\n");
  EXPECT_EQ(folder_.told(), "ok");
  EXPECT_EQ(route(),
            R"(eagle3 5 {"draft_tokens":5,"mode":"chain","weights":"DIR/hub/models--yuhuili--)"
            R"(EAGLE3-LLaMA3.1-Instruct-8B"})");
  folder_.write_json(R"({"model": ")" + kTarget +
                     R"(", "tensor_parallel_size": 1, "max_num_seqs": 3,
    "enable_prefix_caching": false, "gpu_memory_utilization": 0.5,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4}})");
  EXPECT_EQ(folder_.told(),
            "ok\nkeys without a meaning here are ignored (--strict-config refuses them): "
            "DIR/repository/llama/1/model.json has gpu_memory_utilization (2:37)");
  EXPECT_EQ(route(), R"(prompt_lookup 4 {"num_speculative_tokens":4})");
  EXPECT_EQ(folder_.load_repository().value().engine.max_sequences, 3);
}

TEST_F(Load, what_is_no_json_of_vllm_is_refused) {
  const std::pair<std::string, std::string> table[] = {
      {"ngram", ":1:2: malformed JSON: "},
      {"{\"method\": }", ":1:12: malformed JSON: "},
      {"[]", ":1:1: expected a mapping, found a list"},
      {"3", ":1:1: expected a mapping, found '3'"},
      {"{}", ":1:1: expected `method`, or `model` of which it follows"},
      {R"({"method": 3})", ":1:12: method: expected text; quotes make text of it, found '3'"},
      {R"({"method": "ngram", "method": "suffix"})",
       ":1:28: malformed JSON: the key 'method' occurs twice"},
      {R"({"method": "ngram"})", ":1:1: num_speculative_tokens: missing; it is required"},
      {R"({"method": "ngram", "num_speculative_tokens": "5"})",
       ":1:47: num_speculative_tokens: expected a whole number in [1, 64], found text '5'"},
      {R"({"method": "ngram", "num_speculative_tokens": 5.5})",
       ":1:47: num_speculative_tokens: expected a whole number in [1, 64], found '5.5'"},
      {R"({"method": "ngram", "num_speculative_tokens": 0})",
       ":1:47: num_speculative_tokens: expected a whole number in [1, 64], found '0'"},
      {R"({"method": "ngram", "num_speculative_tokens": true})",
       ":1:47: num_speculative_tokens: expected a whole number in [1, 64], found 'true'"},
      {R"({"method": "eagle3", "num_speculative_tokens": 3})",
       ":1:1: model: missing; it is required"},
      {R"({"method": "eagle3", "model": "a..b", "num_speculative_tokens": 3})",
       ":1:31: model: expected the name of a model on Hugging Face's hub, such as ORG/NAME, or a folder: an absolute "
       "path or one that begins with ./; found 'a..b'"},
      {R"({"method": "suffix", "suffix_decoding_max_spec_factor": "2"})",
       ":1:57: suffix_decoding_max_spec_factor: expected a number, found text '2'"},
  };
  for (const auto& [json, expected] : table) {
    const std::string told = route_of_json(json), front = "--speculative-config" + expected;
    EXPECT_TRUE(told == front || (expected.ends_with(' ') && told.starts_with(front)))
        << json << "\n"
        << told;
  }
  EXPECT_NE(route_of_json(std::string(70, '[')).find("--speculative-config:1:"), std::string::npos);
  EXPECT_NE(route_of_json("{\"method\": " + std::string(50, '[') + std::string(50, ']') + "}")
                .find("deeper than 32"),
            std::string::npos);
}

TEST_F(Load, the_option_replaces_what_the_file_says_of_speculation) {
  folder_.write("repository/llama/1/model.yaml", kTutorialDraftTarget);
  LoadOptions options;
  options.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 5})";
  EXPECT_EQ(route(options), R"(prompt_lookup 5 {"num_speculative_tokens":5})");
  const std::string printed = print_config(folder_.load_repository(options).value());
  EXPECT_NE(printed.find("# --speculative-config\n"), std::string::npos) << printed;
}

TEST_F(Load, the_option_adds_a_default_route_to_a_file_of_ours) {
  fs::create_directory(folder_.path() / "model");
  folder_.write(
      "c.yaml",
      "listen: unix:run/s.sock\nmodel: {name: m, path: model}\nplugins: {directories: [plugins]}\n"
      "default_route: prompt_lookup\nroutes:\n  prompt_lookup:\n    drafter: {plugin: a.b}\n    verifier: "
      "{plugin: c}\n  other:\n    drafter: {plugin: a.b}\n    verifier: {plugin: c}\n");
  LoadOptions options;
  options.config = (folder_.path() / "c.yaml").string();
  options.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 5})";
  Result<Config> config = folder_.load_repository(options);
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config.value().engine.routes.size(), 2);
  EXPECT_EQ(config.value().engine.routes[0].drafter.plugin, "specd.drafter.prompt_lookup");
  const std::string replaced =
      "--speculative-config makes a route 'prompt_lookup' in place of that of DIR/c.yaml:6; give that "
      "one another name to have both (--strict-config refuses this)";
  EXPECT_EQ(folder_.told(options), "ok\n" + replaced);
  options.is_strict = true;
  EXPECT_EQ(folder_.told(options), replaced);
  options.is_strict = false;
  options.speculative_config = R"({"method": "suffix"})";
  config = folder_.load_repository(options);
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config.value().warnings, std::vector<std::string>());
  EXPECT_EQ(config.value().engine.routes.size(), 3);
  EXPECT_EQ(config.value().engine.default_route, "suffix");
  options.overrides.set = {"default_route=other"};
  EXPECT_EQ(folder_.load_repository(options).value().engine.default_route, "other");
  options.speculative_config.clear();
  options.overrides = {};
  EXPECT_EQ(folder_.load_repository(options).value().engine.default_route, "prompt_lookup");
}

TEST_F(Load, a_path_of_the_option_begins_at_the_working_directory) {
  const fs::path before = fs::current_path();
  fs::create_directory(folder_.path() / "head");
  fs::current_path(folder_.path());
  EXPECT_EQ(
      route_of_json(R"({"method": "eagle3", "model": "./head", "num_speculative_tokens": 2})"),
      R"(eagle3 2 {"draft_tokens":2,"mode":"chain","weights":"DIR/head"})");
  fs::current_path(before);
}

TEST(Surroundings, say_where_a_daemon_without_a_configuration_listens) {
  const char* const names[] = {"SPECD_SOCKET", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"};
  for (const char* name : names) unsetenv(name);
  EXPECT_EQ(surroundings_of_process().socket, "/tmp/specd-" + std::to_string(geteuid()) + ".sock");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(surroundings_of_process().socket, "/run/user/7/specd.sock");
  setenv("RUNTIME_DIRECTORY", "/run/specd", 1);
  EXPECT_EQ(surroundings_of_process().socket, "/run/specd/specd.sock");
  setenv("SPECD_SOCKET", "a.sock", 1);
  EXPECT_EQ(surroundings_of_process().socket, (fs::current_path() / "a.sock").string());
  for (const char* name : names) unsetenv(name);
}

TEST_F(Load, an_option_may_name_the_folder_of_a_model_that_the_cache_lacks) {
  folder_.write_yaml("model: org/other\n");
  fs::create_directory(folder_.path() / "model");
  LoadOptions options;
  options.overrides.set = {"model.path=" + (folder_.path() / "model").string()};
  EXPECT_EQ(folder_.told(options), "ok");
}

TEST_F(Load, a_reload_reads_their_files_again) {
  folder_.write("repository/llama/1/model.yaml", kTutorialEagle3);
  const Result<Config> config = folder_.load_repository();
  ASSERT_TRUE(config.ok()) << config.status().text();
  std::string text = kTutorialEagle3;
  text.replace(text.find("max_draft_len: 3"), 16, "max_draft_len: 5");
  folder_.write("repository/llama/1/model.yaml", text);
  const Result<Config> again = config.value().read_again();
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again.value().engine.routes.front().draft_nodes_max, 5);
}

TEST_F(Load, the_option_replaces_every_older_word_of_the_file) {
  const std::string target = folder_.download("org/target").string();
  folder_.write_json(R"({"model": ")" + target + R"(", "speculative_model": "[ngram]",
      "speculative_draft_tensor_parallel_size": 1, "num_speculative_tokens": 5, "ngram_prompt_lookup_max": 4})");
  LoadOptions options;
  options.is_strict = true;
  options.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 3})";
  const Result<Config> config = folder_.load_repository(options);
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config.value().engine.routes.front().draft_nodes_max, 3);
}

TEST_F(Load, a_reload_keeps_the_version_that_was_started) {
  folder_.write("repository/llama/1/model.yaml", kTutorialEagle3);
  const Result<Config> config = folder_.load_repository();
  ASSERT_TRUE(config.ok()) << config.status().text();
  folder_.write("repository/llama/2/model.yaml", kTutorialEagle3);
  Result<Config> again = config.value().read_again();
  for (const int round : {1, 2}) {
    ASSERT_TRUE(again.ok()) << again.status().text();
    EXPECT_EQ(again.value().model_version(), 1) << round;
    const auto read = again.value().read_again;  // of a configuration that goes
    again = read();
  }
  const Result<Config> fresh = folder_.load_repository();
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  EXPECT_EQ(fresh.value().model_version(), 2);
}

}  // namespace
}  // namespace specd::host
