#include "host/compat/load.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/words.h"
#include "host/base/unix_socket.h"
#include "host/compat/hub_cache.h"
#include "host/compat/model_file.h"
#include "host/compat/model_repository.h"
#include "host/compat/speculation.h"
#include "host/config/config_keys.h"
#include "host/config/config_overrides.h"
#include "host/config/yaml_reader.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

const std::string kSpeculativeOption = "--speculative-config";

// JSON is YAML, which has the places of values, but for tabs between them.
Result<YamlNode> read_json(std::string text, const std::string& file) {
  if (text.size() <= kYamlBytesMax) {
    const auto json = parse_json(text, file);
    if (!json.ok()) return Status(Code::kInvalidArgument, json.status().message());
  }
  std::ranges::replace(text, '\t', ' ');  // JSON's strings have none
  return parse_yaml(text, file);
}

void set_source(YamlNode& node, const std::shared_ptr<const std::string>& source) {
  node.place.source = node.key_place.source = source;
  for (YamlNode& item : node.items) set_source(item, source);
}

// What Triton's users expect, under the file's own keys.
YamlNode triton_tree(const RepositoryModel& model, const Surroundings& surroundings) {
  const YamlPlace place{.source = std::make_shared<const std::string>("--model-repository")};
  YamlNode root = mapping_node("", place);
  const auto section = [&](const char* name) -> YamlNode& {
    return mapping_below(root, name, place);
  };
  root.items.push_back(text_node("listen", "unix:" + surroundings.socket, place));
  section("http").items.push_back(text_node("listen", "127.0.0.1:8000", place));
  YamlNode& kserve = section("kserve");
  kserve.items.push_back(text_node("listen", "127.0.0.1:8001", place));
  kserve.items.push_back(plain_node("insecure", "true", place));
  kserve.items.push_back(plain_node("model_version", model.version, place));
  kserve.items.push_back(text_node("metrics_listen", "127.0.0.1:8002", place));
  YamlNode devices = list_node("devices", place);
  devices.items.push_back(text_node("", "auto", place));
  root.items.push_back(std::move(devices));
  section("model").items.push_back(text_node("name", model.name, place));
  YamlNode folders = list_node("directories", place);
  folders.items.push_back(text_node("", surroundings.plugins, place));
  section("plugins").items.push_back(std::move(folders));
  return root;
}

// `has_option`: what the file says of speculation does not count.
Status add_file(const RepositoryModel& model, bool has_option, ModelPlaces& places,
                UnknownKeys& unknown, YamlNode& root) {
  SPECD_TRY(std::string text, read_text_file(model.file, kYamlBytesMax));
  const bool is_yaml = model.backend == RepositoryModel::Backend::kLlmApi;
  SPECD_TRY(YamlNode theirs,
            is_yaml ? parse_yaml(text, model.file) : read_json(std::move(text), model.file));
  if (has_option)
    std::erase_if(theirs.items, [](const YamlNode& item) {
      return item.key.starts_with("speculative_") || item.key == "num_speculative_tokens" ||
             item.key.starts_with("ngram_prompt_lookup_");
    });
  const Value value{.node = theirs, .file = model.file};
  return is_yaml ? add_llm_api_model(value, places, unknown, root)
                 : add_vllm_model(value, places, unknown, root);
}

// What is told when the route that the option makes takes the place of one in the file; "" when none
// has its name.
std::string replaced_route(const YamlNode& root, const std::string& name, const std::string& file) {
  const auto of = [](const YamlNode& parent, const std::string& key) {
    const auto found =
        std::ranges::find_if(parent.items, [&](const YamlNode& item) { return item.key == key; });
    return found == parent.items.end() ? nullptr : &*found;
  };
  const YamlNode* const routes = of(root, "routes");
  const YamlNode* const route = routes == nullptr ? nullptr : of(*routes, name);
  if (route == nullptr) return "";
  return kSpeculativeOption + " makes a route " + quote(name) + " in place of that of " + file +
         ":" + std::to_string(route->key_place.line) +
         "; give that one another name to have both (--strict-config refuses this)";
}

// `notice` gets what is told of it.
Status add_speculative_config(const LoadOptions& options, ModelPlaces& places, UnknownKeys& unknown,
                              YamlNode& root, std::string& notice) {
  const std::string& text = options.speculative_config;
  SPECD_TRY(const YamlNode theirs, read_json(text, kSpeculativeOption));
  SPECD_TRY(Speculation made,
            vllm_speculation({.node = theirs, .file = kSpeculativeOption}, places, unknown));
  const auto source = std::make_shared<const std::string>(kSpeculativeOption);
  set_source(made.route, source);
  if (made.draft_model) set_source(*made.draft_model, source);
  notice = replaced_route(root, made.route.key, options.config);
  if (options.is_strict && !notice.empty()) return Status(Code::kInvalidArgument, notice);
  add_speculation(std::move(made), root);
  return Status();
}

// One warning, whatever has the keys.
void add_warning(const UnknownKeys& in_file, const std::string& file, const UnknownKeys& in_option,
                 Config& config) {
  std::vector<std::string> parts;
  for (const auto& [name, unknown] :
       {std::pair(&file, &in_file), {&kSpeculativeOption, &in_option}})
    if (!unknown->found.empty()) parts.push_back(*name + " has " + unknown->text());
  if (!parts.empty())
    config.warnings.push_back(
        "keys without a meaning here are ignored (--strict-config refuses "
        "them): " +
        joined(parts, "; "));
}

}  // namespace

Surroundings surroundings_of_process() {
  Surroundings made;
  made.hub_cache = hub_cache_folder([](const char* name) { return std::getenv(name); });
  made.socket = default_socket();
  std::error_code unused;
  const fs::path program = fs::read_symlink("/proc/self/exe", unused).parent_path().parent_path();
  const fs::path installed = program / "lib/specd/plugins";
  made.plugins = (fs::is_directory(installed, unused) ? installed : program / "plugins").string();
  return made;
}

Result<Config> load(const LoadOptions& options, const Surroundings& surroundings) {
  if (options.model_repository.empty() && options.speculative_config.empty()) {
    return load_config(options.config, options.overrides);
  }
  ModelPlaces places{.hub_cache = surroundings.hub_cache};
  UnknownKeys in_file{.are_errors = options.is_strict}, in_option{.are_errors = options.is_strict};
  YamlNode root;
  std::string file = options.config, notice, replaced;
  LoadOptions again = options;
  if (options.model_repository.empty()) {
    SPECD_TRY(const std::string text, read_text_file(file, kYamlBytesMax));
    SPECD_TRY(root, parse_yaml(text, file));
  } else {
    SPECD_TRY(RepositoryModel model, find_model(options.model_repository, options.load_model));
    places.repository = model.root;
    root = triton_tree(model, surroundings);
    SPECD_OK_OR_RETURN(add_file(model, !options.speculative_config.empty(), places, in_file, root));
    file = model.file;
    notice = model.notice;
    again.load_model = model.name + "/" + model.version;  // a newer version is for the next start
  }
  places.repository.clear();  // the option is not in the repository
  if (!options.speculative_config.empty() && root.kind == YamlNode::Kind::kMap)
    SPECD_OK_OR_RETURN(add_speculative_config(options, places, in_option, root, replaced));
  SPECD_OK_OR_RETURN(apply_overrides(options.overrides, config_keys(), root));
  SPECD_OK_OR_RETURN(check_missing(places, root));
  SPECD_TRY(Config config, load_tree(std::move(root), file));
  for (const std::string& each : {notice, replaced})
    if (!each.empty()) config.warnings.push_back(each);
  add_warning(in_file, file, in_option, config);
  config.read_again = [again, surroundings] { return load(again, surroundings); };
  return config;
}

}  // namespace specd::host
