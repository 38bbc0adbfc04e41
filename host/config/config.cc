#include "host/config/config.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "core/base/json.h"
#include "host/config/config_keys.h"
#include "host/config/yaml_reader.h"

namespace specd::host {
namespace {

// Where copies of plugin libraries live when the file does not say.
std::string default_cache_directory() {
  const auto folder = [](const char* variable) -> std::string {
    const char* value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  if (std::string cache = folder("CACHE_DIRECTORY"); !cache.empty()) return cache;  // systemd
  if (const std::string cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache + "/specd";
  if (const std::string home = folder("HOME"); !home.empty()) return home + "/.cache/specd";
  return "/var/cache/specd";
}

// ---- places of what the engine says -------------------------------------------------------------

// Where the longest part of a path stands.
struct Located {
  const YamlNode* node;  // its value
  YamlPlace key_place;
  bool is_whole;  // all of the path
};

// The child of `node` that `path` begins with, which loses that part; null when there is none.
const YamlNode* step_down(const YamlNode& node, std::string_view& path, YamlPlace& key_place) {
  std::string_view rest = path;
  const bool is_index = rest.front() == '[';
  if (is_index || rest.front() == '.') rest.remove_prefix(1);
  if (node.kind == YamlNode::Kind::kSequence) {  // "[0]", or ".0" as plugins write it
    size_t index = 0;
    const auto [end, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (bad != std::errc() || index >= node.items.size()) return nullptr;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (is_index && !rest.starts_with(']')) return nullptr;
    if (is_index) rest.remove_prefix(1);
    path = rest;
    key_place = node.items[index].place;
    return &node.items[index];
  }
  const YamlNode::Entry* longest = nullptr;  // names may have dots of their own
  for (const YamlNode::Entry& entry : node.entries) {
    if (!rest.starts_with(entry.key)) continue;
    const std::string_view behind = rest.substr(entry.key.size());
    if (!behind.empty() && behind.front() != '.' && behind.front() != '[') continue;
    if (longest == nullptr || entry.key.size() > longest->key.size()) longest = &entry;
  }
  if (longest == nullptr) return nullptr;
  path = rest.substr(longest->key.size());
  key_place = longest->place;
  return &longest->value;
}

Located locate(const YamlNode& root, std::string_view path) {
  Located found{.node = &root, .key_place = {}, .is_whole = false};
  while (!path.empty()) {
    const YamlNode* below = step_down(*found.node, path, found.key_place);
    if (below == nullptr) return found;
    found.node = below;
  }
  found.is_whole = true;
  return found;
}

Status at_key(const std::string& file, const YamlNode& root, const std::string& field,
              const Status& status) {
  return {status.code(),
          error_front(file, locate(root, field).key_place, field) + status.message()};
}

// Of what can be said by the values alone, as the reader says it: at the value. A mapping is told
// by its key.
Status at_value(const std::string& file, const YamlNode& root, const std::string& field,
                const Status& status) {
  const Located found = locate(root, field);
  const bool is_mapping = found.is_whole && found.node->kind == YamlNode::Kind::kMap;
  return {status.code(),
          error_front(file, is_mapping ? found.key_place : found.node->place, field) +
              status.message()};
}

// `field` of a route's own file: without "routes.NAME.". What is about the route as a whole is
// about its name. None when the field is another one's.
std::optional<std::string> own_field(const std::string& field, const std::string& route) {
  const std::string front = "routes." + route;
  if (field == front) return "name";
  if (!field.starts_with(front + ".")) return std::nullopt;
  return field.substr(front.size() + 1);
}

}  // namespace

Result<Config> parse_config(std::string_view text, const std::string& file,
                            const Overrides& overrides) {
  Config config;
  config.file = file;
  SPECD_TRY(config.root, parse_yaml(text, file));
  if (config.root.kind == YamlNode::Kind::kMap)
    SPECD_OK_OR_RETURN(apply_overrides(overrides, config_keys(), config.root));
  SPECD_TRY(const Json values, read_value(config_keys(), {config.root, config.file, ""}));
  load(values, config);
  if (config.engine.plugin_cache_directory.empty())
    config.engine.plugin_cache_directory = default_cache_directory();
  for (RouteOptions& route : config.engine.routes)
    if (route.model.empty()) route.model = config.engine.model.name;
  if (const Status status = check_limits(config.engine); !status.ok())
    return at_value(file, config.root, status.field(), status);
  return config;
}

Status with_place(const Config& config, const Status& status) {
  if (status.field().empty()) return status;
  return at_key(config.file, config.root, status.field(), status);
}

Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine) {
  RouteFile result{.route = {}, .file = file, .root = {}};
  SPECD_TRY(result.root, parse_yaml(text, file));
  SPECD_TRY(const Json values, read_value(route_file_keys(), {result.root, result.file, ""}));
  load(values, result.route);
  RouteOptions& route = result.route;
  if (route.model.empty()) route.model = engine.model.name;
  if (const Status status = check_route(route, engine); !status.ok())
    return at_value(file, result.root, own_field(status.field(), route.name).value_or(""), status);
  return result;
}

Status with_place(const RouteFile& file, const Status& status) {
  const auto field = own_field(status.field(), file.route.name);
  return field ? at_key(file.file, file.root, *field, status) : status;
}

Json route_to_json(const RouteOptions& route) { return save(route); }

Result<Config> load_config(const std::string& path, const Overrides& overrides) {
  SPECD_TRY(const std::string text, read_text_file(path, kYamlBytesMax));
  return parse_config(text, path, overrides);
}

}  // namespace specd::host
