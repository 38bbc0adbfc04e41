#include "host/config/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <utility>

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
  if (const std::string cache = folder("CACHE_DIRECTORY"); !cache.empty()) return cache;  // systemd
  if (const std::string cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache + "/specd";
  if (const std::string home = folder("HOME"); !home.empty()) return home + "/.cache/specd";
  return "/var/cache/specd";
}

// ---- what several keys say together -------------------------------------------------------------

Status check_draft_models(const Value& list, const EngineOptions& engine) {
  std::set<std::string> names{engine.model.name};
  for (size_t i = 0; i < engine.draft_models.size(); ++i)
    if (!names.insert(engine.draft_models[i].name).second)
      return list.item(i).at("name").not_expected("a name that no other model has");
  return Status();
}

// `engine` is what the route has to fit.
Status check_route(const Value& value, const EngineOptions& engine, RouteOptions& route) {
  if (route.model.empty()) route.model = engine.model.name;
  if (route.model != engine.model.name)
    return value.at("model").error("expected '" + engine.model.name +
                                   "', the model that is served; found '" + route.model + "'");
  if (route.draft_nodes_max >= engine.step_tokens_max)
    return value.at("draft_nodes_max")
        .error("expected less than engine.step_tokens_max (" +
               std::to_string(engine.step_tokens_max) + "), found " +
               std::to_string(route.draft_nodes_max));
  return Status();
}

Status check_default_route(const Value& value, const EngineOptions& engine) {
  std::vector<std::string> names{"off"};
  for (const RouteOptions& route : engine.routes) names.push_back(route.name);
  if (std::find(names.begin(), names.end(), engine.default_route) != names.end()) return Status();
  const std::string near = nearest(engine.default_route, names);
  return value.error("expected a route of this file (" + joined(names) + "); found '" +
                     engine.default_route + "'" +
                     (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

Status check_together(const Value& root, EngineOptions& engine) {
  if (engine.step_tokens_max < engine.max_sequences)
    return root.at("engine")
        .at("step_tokens_max")
        .error("expected at least max_sequences (" + std::to_string(engine.max_sequences) +
               "), so that each sequence gets a row; found " +
               std::to_string(engine.step_tokens_max));
  SPECD_OK_OR_RETURN(check_draft_models(root.at("draft_models"), engine));
  for (RouteOptions& route : engine.routes)
    SPECD_OK_OR_RETURN(check_route(root.at("routes").at(route.name), engine, route));
  return check_default_route(root.at("default_route"), engine);
}

// ---- places of what the engine says -------------------------------------------------------------

struct Located {
  std::string path;  // the longest part of a path that stands in the file
  YamlPlace place;
};

Located locate(const YamlNode& root, const std::string& path) {
  Located found{"", {}};
  const YamlNode* node = &root;
  for (size_t at = 0; at < path.size();) {
    if (path[at] == '[') {
      size_t index = 0;
      const char* const end = path.data() + path.size();
      const auto [stop, bad] = std::from_chars(path.data() + at + 1, end, index);
      if (bad != std::errc() || stop == end || *stop != ']' || index >= node->items.size()) break;
      at = static_cast<size_t>(stop - path.data()) + 1;
      node = &node->items[index];
      found = {path.substr(0, at), node->place};
      continue;
    }
    const size_t begin = path[at] == '.' ? at + 1 : at;
    const YamlNode::Entry* longest = nullptr;  // names may have dots of their own
    for (const YamlNode::Entry& entry : node->entries) {
      const size_t end = begin + entry.key.size();
      if (path.compare(begin, entry.key.size(), entry.key) != 0) continue;
      if (end < path.size() && path[end] != '.' && path[end] != '[') continue;
      if (longest == nullptr || entry.key.size() > longest->key.size()) longest = &entry;
    }
    if (longest == nullptr) break;
    at = begin + longest->key.size();
    node = &longest->value;
    found = {path.substr(0, at), longest->place};
  }
  return found;
}

bool begins_with(std::string_view text, std::string_view front) {
  return text.substr(0, front.size()) == front;
}

// "FILE:LINE:COLUMN: path: " of the longest part of `path` that stands in the file.
std::string place_front(const std::string& file, const YamlNode& root, const std::string& path) {
  const Located found = locate(root, path);
  return error_front(file, found.place, found.path);
}
std::string place_front(const Config& config, const std::string& path) {
  return place_front(config.file, config.root, path);
}

// The key of `route` that `reason` is about. The engine begins with the plugin; its reasons are
// those of core/plugin/bundle/registry.cc and instance.cc. What a plugin says of its own configuration may
// begin with a key; where it does not, locate() falls back to what is there.
std::string key_of_reason(const RouteOptions& route, const std::string& reason) {
  struct Part {
    std::string key, other;
    const PluginUse& use;
  };
  for (const auto& [key, other, use] :
       {Part{"drafter", "verifier", route.drafter}, Part{"verifier", "drafter", route.verifier}}) {
    const std::string made = "plugin " + use.plugin + " (", asked = "plugin '" + use.plugin + "'";
    std::string_view rest = reason;
    if (begins_with(rest, asked)) {
      rest.remove_prefix(asked.size());
      // One plugin may stand in both places.
      if (begins_with(rest, " has no " + other)) continue;
      if (begins_with(rest, " has no " + key + " factory '")) return key + ".factory";
      if (begins_with(rest, ": factory '")) {  // "'f' makes a drafter, not a verifier"
        if (rest.ends_with(", not a " + other)) continue;
        return key + ".factory";
      }
      if (!begins_with(rest, " factory '")) return key + ".plugin";
      rest.remove_prefix(std::min(rest.find("': "), rest.size() - 3) + 3);
      if (begins_with(rest, "config: ")) {
        const size_t open = rest.find('\'');
        const size_t close = open == std::string_view::npos ? open : rest.find('\'', open + 1);
        if (close == std::string_view::npos) return key + ".config";
        return key + ".config." + std::string(rest.substr(open + 1, close - open - 1));
      }
    } else if (!begins_with(rest, made)) {
      continue;
    }
    const size_t returned = rest.find("() returned SPECD_E_");
    constexpr std::string_view kConfig = "() returned SPECD_E_CONFIG (";
    if (returned == std::string_view::npos || !begins_with(rest.substr(returned), kConfig))
      return key;
    const size_t text = rest.find("): ", returned + kConfig.size());
    if (text == std::string_view::npos) return key + ".config";
    rest.remove_prefix(text + 3);
    return key + ".config." + std::string(rest.substr(0, rest.find(':')));
  }
  return reason.find("reaches guarantee") != std::string::npos ? "guarantee" : "";
}

// REQUIRES a section of values and sections that are there
Json section_to_json(const Key& section, const void* target) {
  Json json = Json::object();
  for (const Key& key : section.keys) {
    const Json value =
        key.show ? key.show(target) : section_to_json(key, key.parts(target).front().second);
    if (!value.is_null()) json[key.name] = value;
  }
  return json;
}

}  // namespace

Result<Config> parse_config(std::string_view text, const std::string& file,
                            const Overrides& overrides) {
  Config config;
  config.file = file;
  SPECD_TRY(config.root, parse_yaml(text, file));
  const Value root(config.root, config.file, "");
  if (config.root.kind == YamlNode::Kind::kMap)
    SPECD_OK_OR_RETURN(apply_overrides(overrides, config_keys(), config.root));
  SPECD_OK_OR_RETURN(read_key(config_keys(), root, &config));
  if (config.engine.plugin_cache_directory.empty())
    config.engine.plugin_cache_directory = default_cache_directory();
  SPECD_OK_OR_RETURN(check_together(root, config.engine));
  return config;
}

std::string route_reason_with_place(const Config& config, const std::string& route,
                                    const std::string& reason) {
  for (const RouteOptions& one : config.engine.routes) {
    if (one.name != route) continue;
    const std::string key = key_of_reason(one, reason);
    return place_front(config, "routes." + route + (key.empty() ? "" : "." + key)) + reason;
  }
  return reason;
}

Status with_place(const Config& config, const Status& status) {
  if (status.ok()) return status;
  const std::string& text = status.message();
  for (const RouteOptions& route : config.engine.routes)
    for (const std::string& front :
         {"routes." + route.name + ": ", "default route '" + route.name + "': "})
      if (begins_with(text, front))
        return Status(status.code(),
                      route_reason_with_place(config, route.name, text.substr(front.size())));
  // "engine.isa: expected ...", as the file spells it.
  if (const size_t colon = text.find(": ");
      colon != std::string::npos &&
      locate(config.root, text.substr(0, colon)).path == text.substr(0, colon))
    return Status(status.code(),
                  place_front(config, text.substr(0, colon)) + text.substr(colon + 2));
  std::string path;
  if (begins_with(text, "plugin directory ")) path = "plugins.directories";
  if (begins_with(text, "plugin cache directory")) path = "plugins.cache_directory";
  if (path.empty() && text.find(config.engine.model.path) != std::string::npos) path = "model.path";
  for (size_t i = 0; i < config.engine.draft_models.size(); ++i)
    if (begins_with(text, "draft_models." + config.engine.draft_models[i].name + ": "))
      path = "draft_models[" + std::to_string(i) + "]";
  return Status(status.code(), place_front(config, path) + text);
}

Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine) {
  RouteFile result{.route = {}, .file = file, .root = {}};
  SPECD_TRY(result.root, parse_yaml(text, file));
  const Value root(result.root, result.file, "");
  SPECD_OK_OR_RETURN(read_key(route_file_keys(), root, &result.route));
  SPECD_OK_OR_RETURN(check_route(root, engine, result.route));
  return result;
}

Status with_place(const RouteFile& file, const Status& status) {
  const std::string front = "routes." + file.route.name;
  const std::string& text = status.message();
  if (status.ok() || !begins_with(text, front)) return status;
  const std::string_view rest = std::string_view(text).substr(front.size());
  if (begins_with(rest, ": ")) {
    const std::string reason(rest.substr(2));
    return Status(status.code(),
                  place_front(file.file, file.root, key_of_reason(file.route, reason)) + reason);
  }
  const size_t colon = rest.find(": ");  // ".draft_nodes_max: expected ..."
  if (!begins_with(rest, ".") || colon == std::string_view::npos) return status;
  return Status(status.code(),
                place_front(file.file, file.root, std::string(rest.substr(1, colon - 1))) +
                    std::string(rest.substr(colon + 2)));
}

Json route_to_json(const RouteOptions& route) { return section_to_json(route_file_keys(), &route); }

Result<Config> load_config(const std::string& path, const Overrides& overrides) {
  SPECD_TRY(const std::string text, read_text_file(path, kYamlBytesMax));
  return parse_config(text, path, overrides);
}

}  // namespace specd::host
