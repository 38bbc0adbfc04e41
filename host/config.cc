#include "host/config.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <utility>

#include "core/base/json.h"
#include "host/unix_socket.h"
#include "host/yaml_reader.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;
using Kind = YamlNode::Kind;

constexpr int64_t kDrainSecondsMax = 86'400;
constexpr int64_t kStallSecondsMax = 86'400;
constexpr size_t kNameMax = 64;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return "a value";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "nothing";
}

std::string found(const YamlNode& node) {
  if (node.kind != Kind::kScalar) return kind_name(node.kind);
  const std::string shown = node.value.size() > 60 ? node.value.substr(0, 57) + "..." : node.value;
  return (node.plain ? "" : "text ") + ("'" + shown + "'");
}

// One mapping of the file, with the names that may stand in it.
class Section {
 public:
  static Result<Section> open(const YamlNode& node, const std::string& file, std::string path,
                              std::vector<std::string> keys) {
    Section section(node, file, std::move(path), std::move(keys));
    if (node.kind != Kind::kMap)
      return section.error(node.place, "", "expected a mapping, found " + found(node));
    for (const YamlNode::Entry& entry : node.entries) {
      if (std::find(section.keys_.begin(), section.keys_.end(), entry.key) != section.keys_.end())
        continue;
      std::string known;
      for (const std::string& key : section.keys_) known += (known.empty() ? "" : ", ") + key;
      const std::string near = nearest(entry.key, section.keys_);
      return section.error(entry.place, entry.key,
                           "unknown key; " + (near.empty() ? "" : "did you mean '" + near + "'? ") +
                               "known here: " + known);
    }
    return section;
  }

  const YamlNode* find(std::string_view key) const { return node_->find(key); }
  YamlPlace place() const { return node_->place; }

  std::string path_of(const std::string& key) const {
    return path_.empty() ? key : key.empty() ? path_ : path_ + "." + key;
  }
  Status error(YamlPlace place, const std::string& key, const std::string& text) const {
    const std::string path = path_of(key);
    return Status(Code::kInvalidArgument,
                  place_text(*file_, place) + ": " + (path.empty() ? "" : path + ": ") + text);
  }

  Result<Section> section(const std::string& key, std::vector<std::string> keys) const {
    SPECD_TRY(const YamlNode* node, required(key));
    return open(*node, *file_, path_of(key), std::move(keys));
  }

  Result<const YamlNode*> required(const std::string& key) const {
    if (const YamlNode* node = find(key)) return node;
    return error(node_->place, key, "missing; it is required");
  }

  // Non-empty text.
  Result<std::string> text(const std::string& key, std::optional<std::string> fallback = {}) const {
    const YamlNode* node = find(key);
    if (node == nullptr && fallback) return *fallback;
    SPECD_TRY(node, required(key));
    if (node->kind != Kind::kScalar || node->value.empty())
      return error(node->place, key, "expected text, found " + found(*node));
    for (const char c : node->value)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        return error(node->place, key, "expected text without control characters");
    return node->value;
  }

  // Letters, digits, '_', '-' and '.', at most 64: what a request or a log line can carry.
  Result<std::string> name(const std::string& key, std::optional<std::string> fallback = {}) const {
    SPECD_TRY(std::string value, text(key, std::move(fallback)));
    if (!is_name(value))
      return error(find(key)->place, key, "expected " + name_rule() + ", found '" + value + "'");
    return value;
  }
  static bool is_name(std::string_view value) {
    return !value.empty() && value.size() <= kNameMax &&
           value.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
               "_-.") == std::string_view::npos;
  }
  static std::string name_rule() { return "a name of at most 64 letters, digits, '_', '-' or '.'"; }

  Result<std::string> choice(const std::string& key, const std::vector<std::string>& choices,
                             const std::string& fallback) const {
    const YamlNode* node = find(key);
    if (node == nullptr) return fallback;
    if (node->kind == Kind::kScalar &&
        std::find(choices.begin(), choices.end(), node->value) != choices.end())
      return node->value;
    std::string list;
    for (const std::string& one : choices) list += (list.empty() ? "" : ", ") + one;
    const std::string near =
        node->kind == Kind::kScalar ? nearest(node->value, choices) : std::string();
    return error(node->place, key,
                 "expected one of " + list + "; found " + found(*node) +
                     (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }

  Result<int64_t> integer(const std::string& key, int64_t fallback, int64_t min,
                          int64_t max) const {
    const YamlNode* node = find(key);
    if (node == nullptr) return fallback;
    const std::string expected = "expected a whole number in [" + std::to_string(min) + ", " +
                                 std::to_string(max) + "], found " + found(*node);
    if (node->kind != Kind::kScalar || !node->plain) return error(node->place, key, expected);
    SPECD_TRY(const Json json, yaml_to_json(*node, *file_, path_of(key)));
    if (!json.is_number_integer()) return error(node->place, key, expected);
    if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(max))
      return error(node->place, key, expected);
    const int64_t value = json.get<int64_t>();
    if (value < min || value > max) return error(node->place, key, expected);
    return value;
  }

  // More than 0, at most 1; 0 when it is not there.
  Result<double> share(const std::string& key) const {
    const YamlNode* node = find(key);
    if (node == nullptr) return 0.0;
    const std::string expected =
        "expected a number of more than 0 and at most 1, found " + found(*node);
    if (node->kind != Kind::kScalar || !node->plain) return error(node->place, key, expected);
    SPECD_TRY(const Json json, yaml_to_json(*node, *file_, path_of(key)));
    if (!json.is_number()) return error(node->place, key, expected);
    const double value = json.get<double>();
    if (!(value > 0 && value <= 1)) return error(node->place, key, expected);
    return value;
  }

  Result<bool> boolean(const std::string& key, bool fallback) const {
    const YamlNode* node = find(key);
    if (node == nullptr) return fallback;
    if (node->kind == Kind::kScalar && node->plain && node->value == "true") return true;
    if (node->kind == Kind::kScalar && node->plain && node->value == "false") return false;
    return error(node->place, key, "expected true or false, found " + found(*node));
  }

  // Bytes: a whole number, alone or with KiB, MiB or GiB.
  Result<uint64_t> bytes(const std::string& key, uint64_t fallback) const {
    const YamlNode* node = find(key);
    if (node == nullptr) return fallback;
    const std::string expected =
        "expected a size such as 512MiB (KiB, MiB, GiB, or plain bytes), found " + found(*node);
    if (node->kind != Kind::kScalar) return error(node->place, key, expected);
    const std::string& text = node->value;
    uint64_t value = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    if (bad != std::errc() || (text.size() > 1 && text[0] == '0'))
      return error(node->place, key, expected);
    int shift = -1;
    if (unit.empty()) shift = 0;
    if (unit == "KiB") shift = 10;
    if (unit == "MiB") shift = 20;
    if (unit == "GiB") shift = 30;
    if (shift < 0) return error(node->place, key, expected);
    if (value == 0 || value > (uint64_t{1} << 50) >> shift)
      return error(node->place, key,
                   "expected a size from 1 byte to 1024 TiB, found " + found(*node));
    return value << shift;
  }

  // Relative to the file's folder.
  std::string resolve(const std::string& path) const {
    const fs::path base = fs::path(*file_).parent_path();
    return fs::absolute(base / path).lexically_normal().string();
  }
  Status must_be_directory(const YamlNode& node, const std::string& key,
                           const std::string& resolved, const std::string& what) const {
    std::error_code failure;
    if (fs::is_directory(resolved, failure)) return Status();
    const bool is_there = fs::exists(resolved, failure);
    return error(node.place, key,
                 "expected " + what + ", found " +
                     (is_there ? "something that is not a folder" : "nothing") + " at " + resolved);
  }

 private:
  Section(const YamlNode& node, const std::string& file, std::string path,
          std::vector<std::string> keys)
      : node_(&node), file_(&file), path_(std::move(path)), keys_(std::move(keys)) {}

  const YamlNode* node_;
  const std::string* file_;
  std::string path_;
  std::vector<std::string> keys_;
};

Status read_model_path(const Section& section, std::string& path) {
  SPECD_TRY(path, section.text("path"));
  path = section.resolve(path);
  return section.must_be_directory(*section.find("path"), "path", path,
                                   "a folder with config.json, model.safetensors and "
                                   "tokenizer.json");
}

Status read_kv_dtype(const Section& kv, KvDType& out) {
  SPECD_TRY(const std::string dtype, kv.choice("dtype", {"f32", "f16", "bf16"}, "bf16"));
  out = dtype == "f32" ? KvDType::kF32 : dtype == "f16" ? KvDType::kF16 : KvDType::kBF16;
  return Status();
}

Status read_model(const Section& root, ModelOptions& model) {
  SPECD_TRY(const Section section, root.section("model", {"name", "path", "kv"}));
  SPECD_TRY(model.name, section.name("name"));
  SPECD_OK_OR_RETURN(read_model_path(section, model.path));
  if (section.find("kv") == nullptr) return Status();
  SPECD_TRY(const Section kv,
            section.section("kv", {"dtype", "bytes_max", "memory_share", "pages", "prefix_cache"}));
  SPECD_OK_OR_RETURN(read_kv_dtype(kv, model.kv_dtype));
  SPECD_TRY(model.kv_bytes_max, kv.bytes("bytes_max", 0));
  SPECD_TRY(model.kv_memory_share, kv.share("memory_share"));
  SPECD_TRY(const int64_t pages, kv.integer("pages", 0, 1, EngineLimits::kKvPages));
  model.kv_pages = static_cast<int32_t>(pages);
  SPECD_TRY(model.prefix_cache, kv.boolean("prefix_cache", true));
  std::string first;
  for (const char* key : {"bytes_max", "memory_share", "pages"}) {
    const YamlNode* node = kv.find(key);
    if (node == nullptr) continue;
    if (!first.empty()) {
      return kv.error(node->place, key,
                      "the size is given already, as " + first +
                          "; expected one of bytes_max, memory_share and pages");
    }
    first = key;
  }
  return Status();
}

Status read_draft_models(const Section& root, const std::string& file, EngineOptions& engine) {
  const YamlNode* list = root.find("draft_models");
  if (list == nullptr) return Status();
  if (list->kind != Kind::kSequence)
    return root.error(list->place, "draft_models", "expected a list, found " + found(*list));
  for (size_t i = 0; i < list->items.size(); ++i) {
    SPECD_TRY(const Section section,
              Section::open(list->items[i], file, "draft_models[" + std::to_string(i) + "]",
                            {"name", "path", "kv"}));
    DraftModelOptions model;
    SPECD_TRY(model.name, section.name("name"));
    bool taken = model.name == engine.model.name;
    for (const DraftModelOptions& other : engine.draft_models) taken |= other.name == model.name;
    if (taken)
      return section.error(section.find("name")->place, "name",
                           "expected a name that no other model has, found '" + model.name + "'");
    SPECD_OK_OR_RETURN(read_model_path(section, model.path));
    if (section.find("kv") != nullptr) {
      SPECD_TRY(const Section kv, section.section("kv", {"dtype"}));
      SPECD_OK_OR_RETURN(read_kv_dtype(kv, model.kv_dtype));
    }
    engine.draft_models.push_back(std::move(model));
  }
  return Status();
}

Status read_devices(const Section& root, EngineOptions& engine) {
  const YamlNode* list = root.find("devices");
  if (list == nullptr) return Status();
  if (list->kind != Kind::kSequence || list->items.size() != 1)
    return root.error(
        list->place, "devices",
        "expected a list of one device (several cannot share a model yet), found " +
            (list->kind == Kind::kSequence ? "a list of " + std::to_string(list->items.size())
                                           : found(*list)));
  const YamlNode& item = list->items.front();
  if (item.kind != Kind::kScalar || !is_device_name(item.value))
    return root.error(
        item.place, "devices[0]",
        "expected cpu, cuda:N (N as CUDA numbers devices) or auto, found " + found(item));
  engine.devices = {item.value};
  return Status();
}

Status read_engine(const Section& root, EngineOptions& engine) {
  if (root.find("engine") == nullptr) return Status();
  SPECD_TRY(const Section section,
            root.section("engine", {"threads", "isa", "numerics", "max_sequences",
                                    "step_tokens_max", "queue_max", "priority_aging_ms"}));
  SPECD_TRY(const int64_t threads,
            section.integer("threads", engine.threads, 0, EngineLimits::kThreads));
  SPECD_TRY(const std::string isa,
            section.choice("isa", {"auto", "scalar", "avx2", "avx512"}, "auto"));
  SPECD_TRY(const int64_t sequences,
            section.integer("max_sequences", engine.max_sequences, 1, EngineLimits::kSequences));
  SPECD_TRY(const int64_t tokens, section.integer("step_tokens_max", engine.step_tokens_max, 1,
                                                  EngineLimits::kStepTokens));
  SPECD_TRY(const int64_t queue,
            section.integer("queue_max", engine.queue_max, 1, EngineLimits::kQueue));
  SPECD_TRY(const int64_t aging, section.integer("priority_aging_ms", engine.priority_aging_ms, 1,
                                                 EngineLimits::kPriorityAgingMs));
  if (tokens < sequences) {
    const YamlNode* node = section.find("step_tokens_max");
    return section.error(node != nullptr ? node->place : section.place(), "step_tokens_max",
                         "expected at least max_sequences (" + std::to_string(sequences) +
                             "), so that each sequence gets a row; found " +
                             std::to_string(tokens));
  }
  SPECD_TRY(const std::string numerics, section.choice("numerics", {"strict", "fast"}, "strict"));
  engine.numerics = numerics == "fast" ? Numerics::kFast : Numerics::kStrict;
  engine.threads = static_cast<int32_t>(threads);
  engine.isa = isa == "auto" ? "" : isa;
  engine.max_sequences = static_cast<int32_t>(sequences);
  engine.step_tokens_max = static_cast<int32_t>(tokens);
  engine.queue_max = static_cast<int32_t>(queue);
  engine.priority_aging_ms = static_cast<int32_t>(aging);
  return Status();
}

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

Status read_plugins(const Section& root, EngineOptions& engine) {
  engine.plugin_cache_directory = default_cache_directory();
  if (root.find("plugins") == nullptr) return Status();
  SPECD_TRY(const Section section, root.section("plugins", {"directories", "cache_directory"}));
  SPECD_TRY(const YamlNode* list, section.required("directories"));
  if (list->kind != Kind::kSequence)
    return section.error(list->place, "directories", "expected a list, found " + found(*list));
  for (size_t i = 0; i < list->items.size(); ++i) {
    const YamlNode& item = list->items[i];
    const std::string key = "directories[" + std::to_string(i) + "]";
    if (item.kind != Kind::kScalar || item.value.empty())
      return section.error(item.place, key, "expected a folder, found " + found(item));
    const std::string directory = section.resolve(item.value);
    SPECD_OK_OR_RETURN(section.must_be_directory(
        item, key, directory, "a folder whose subfolders are plugins (is it built?)"));
    engine.plugin_directories.push_back(directory);
  }
  if (section.find("cache_directory") != nullptr) {
    SPECD_TRY(const std::string cache, section.text("cache_directory"));
    engine.plugin_cache_directory = section.resolve(cache);
  }
  return Status();
}

Status read_use(const Section& route, const std::string& file, const std::string& key,
                PluginUse& use) {
  SPECD_TRY(const Section section, route.section(key, {"plugin", "factory", "config"}));
  SPECD_TRY(use.plugin, section.name("plugin"));
  if (section.find("factory") != nullptr) {
    SPECD_TRY(use.factory, section.name("factory"));
  }
  const YamlNode* config = section.find("config");
  if (config == nullptr || config->kind == Kind::kNull) return Status();
  if (config->kind != Kind::kMap)
    return section.error(config->place, "config", "expected a mapping, found " + found(*config));
  SPECD_TRY(use.config, yaml_to_json(*config, file, section.path_of("config")));
  return Status();
}

const std::vector<std::string> kRouteKeys{
    "model", "guarantee", "draft_nodes_max", "disable_by_batch_size", "drafter", "verifier"};

Status check_route_name(const Section& section, YamlPlace place, const std::string& key,
                        const std::string& name) {
  if (!Section::is_name(name))
    return section.error(
        place, key,
        "expected " + Section::name_rule() + " as the name of a route, found '" + name + "'");
  if (name == "off")
    return section.error(place, key, "'off' is reserved: it is plain decoding and always there");
  return Status();
}

// The keys of one route; `engine` is what it has to fit.
Result<RouteOptions> read_route(const Section& section, const std::string& file,
                                const std::string& name, const EngineOptions& engine) {
  RouteOptions route;
  route.name = name;
  SPECD_TRY(route.model, section.name("model", engine.model.name));
  if (route.model != engine.model.name)
    return section.error(section.find("model")->place, "model",
                         "expected '" + engine.model.name + "', the model that is served; found '" +
                             route.model + "'");
  SPECD_TRY(const std::string guarantee,
            section.choice("guarantee", {"identical", "law", "none"}, "identical"));
  route.guarantee = guarantee == "identical" ? Guarantee::kIdentical
                    : guarantee == "law"     ? Guarantee::kLaw
                                             : Guarantee::kNone;
  SPECD_TRY(const int64_t nodes, section.integer("draft_nodes_max", route.draft_nodes_max, 1,
                                                 EngineLimits::kDraftNodes));
  if (nodes >= engine.step_tokens_max) {
    const YamlNode* node = section.find("draft_nodes_max");
    return section.error(node != nullptr ? node->place : section.place(), "draft_nodes_max",
                         "expected less than engine.step_tokens_max (" +
                             std::to_string(engine.step_tokens_max) + "), found " +
                             std::to_string(nodes));
  }
  route.draft_nodes_max = static_cast<int32_t>(nodes);
  SPECD_TRY(const int64_t batch,
            section.integer("disable_by_batch_size", 0, 0, EngineLimits::kSequences));
  route.disable_by_batch_size = static_cast<int32_t>(batch);
  SPECD_OK_OR_RETURN(read_use(section, file, "drafter", route.drafter));
  SPECD_OK_OR_RETURN(read_use(section, file, "verifier", route.verifier));
  return route;
}

Status read_routes(const Section& root, const std::string& file, EngineOptions& engine) {
  const YamlNode* routes = root.find("routes");
  if (routes == nullptr || routes->kind == Kind::kNull) return Status();
  if (routes->kind != Kind::kMap)
    return root.error(routes->place, "routes", "expected a mapping, found " + found(*routes));
  for (const YamlNode::Entry& entry : routes->entries) {
    const std::string key = "routes." + entry.key;
    SPECD_OK_OR_RETURN(
        check_route_name(root, entry.place, entry.key == "off" ? key : "routes", entry.key));
    SPECD_TRY(const Section section, Section::open(entry.value, file, key, kRouteKeys));
    SPECD_TRY(RouteOptions route, read_route(section, file, entry.key, engine));
    engine.routes.push_back(std::move(route));
  }
  return Status();
}

Status read_default_route(const Section& root, EngineOptions& engine) {
  SPECD_TRY(engine.default_route, root.name("default_route", "off"));
  std::vector<std::string> names{"off"};
  for (const RouteOptions& route : engine.routes) names.push_back(route.name);
  if (std::find(names.begin(), names.end(), engine.default_route) != names.end()) return Status();
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const std::string near = nearest(engine.default_route, names);
  return root.error(root.find("default_route")->place, "default_route",
                    "expected a route of this file (" + list + "); found '" + engine.default_route +
                        "'" + (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

void collect_places(const YamlNode& node, const std::string& path, YamlPlaces& places) {
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    places[at] = node.items[i].place;
    collect_places(node.items[i], at, places);
  }
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string at = path.empty() ? entry.key : path + "." + entry.key;
    places[at] = entry.place;
    collect_places(entry.value, at, places);
  }
}

bool begins_with(std::string_view text, std::string_view front) {
  return text.substr(0, front.size()) == front;
}

// "FILE:LINE:COLUMN: path: " of the longest part of `path` that stands in the file.
std::string place_prefix(const std::string& file, const YamlPlaces& places, std::string path) {
  while (!path.empty() && places.count(path) == 0) {
    const size_t cut = path.find_last_of(".[");
    path.erase(cut == std::string::npos ? 0 : cut);
  }
  const auto found = places.find(path);
  return place_text(file, found == places.end() ? YamlPlace{} : found->second) + ": " +
         (path.empty() ? "" : path + ": ");
}
std::string place_prefix(const Config& config, const std::string& path) {
  return place_prefix(config.file, config.places, path);
}

// The key of `route` that `reason` is about: the engine names the plugin, and the key of its
// configuration in quotes.
std::string key_of_reason(const RouteOptions& route, const std::string& reason) {
  for (const auto& [key, use] : {std::pair<const char*, const PluginUse&>{"drafter", route.drafter},
                                 {"verifier", route.verifier}}) {
    const std::string who = "plugin '" + use.plugin + "'";
    const size_t at = reason.find(who);
    if (at == std::string::npos) continue;
    constexpr std::string_view kConfig = ": config: ";
    const size_t config = reason.find(kConfig, at);
    if (config == std::string::npos)
      return std::string(key) + (reason.find(" factory", at) == std::string::npos ? ".plugin" : "");
    const size_t open = reason.find('\'', config);
    const size_t close = open == std::string::npos ? open : reason.find('\'', open + 1);
    if (close == std::string::npos) return std::string(key) + ".config";
    return std::string(key) + ".config." + reason.substr(open + 1, close - open - 1);
  }
  return reason.find("reaches guarantee") != std::string::npos ? "guarantee" : "";
}

Status read_listen(const Section& root, Config& config) {
  SPECD_TRY(const std::string listen, root.text("listen"));
  const YamlPlace place = root.find("listen")->place;
  constexpr std::string_view kScheme = "unix:";
  if (listen.substr(0, kScheme.size()) != kScheme || listen.size() == kScheme.size())
    return root.error(place, "listen",
                      "expected unix:PATH, found '" + listen +
                          "'; only Unix sockets are served, TCP will need mutual TLS");
  std::string path = listen.substr(kScheme.size());
  if (path.substr(0, 2) == "//") path.erase(0, 2);  // unix:///run/x
  config.socket_path = root.resolve(path);
  if (config.socket_path.size() > kSocketPathMax)
    return root.error(place, "listen",
                      "expected at most " + std::to_string(kSocketPathMax) +
                          " bytes for the path of a Unix socket, found " +
                          std::to_string(config.socket_path.size()) + ": " + config.socket_path);
  const std::string folder = fs::path(config.socket_path).parent_path().string();
  std::error_code failure;
  if (!fs::is_directory(folder, failure))
    return root.error(place, "listen",
                      "expected a socket in an existing folder; there is no folder " + folder +
                          " (create it, private to the user of specd)");
  return Status();
}

// "ADDRESS:PORT" with a literal address; an IPv6 one stands in brackets.
Status read_http_listen(const Section& section, HttpOptions& http) {
  SPECD_TRY(const std::string listen, section.text("listen"));
  const auto refuse = [&](const std::string& why) {
    return section.error(
        section.find("listen")->place, "listen",
        "expected ADDRESS:PORT such as 127.0.0.1:9090 or [::1]:9090, found '" + listen + "'" + why);
  };
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return refuse("");
  std::string address = listen.substr(0, colon);
  const bool brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (brackets) address = address.substr(1, address.size() - 2);
  const std::string port = listen.substr(colon + 1);
  const auto [end, bad] = std::from_chars(port.data(), port.data() + port.size(), http.port);
  if (bad != std::errc() || end != port.data() + port.size() || (port.size() > 1 && port[0] == '0'))
    return refuse("; a port is a number from 0 (any free one) to 65535");
  in_addr v4{};
  in6_addr v6{};
  if (brackets ? inet_pton(AF_INET6, address.c_str(), &v6) != 1
               : inet_pton(AF_INET, address.c_str(), &v4) != 1)
    return refuse("; names are not resolved, write the address");
  // Metrics have no password: who wants them on a network says on which address.
  if (brackets
          ? IN6_IS_ADDR_UNSPECIFIED(&v6) || IN6_IS_ADDR_MULTICAST(&v6) || IN6_IS_ADDR_V4MAPPED(&v6)
          : v4.s_addr == htonl(INADDR_ANY) || v4.s_addr == htonl(INADDR_BROADCAST) ||
                IN_MULTICAST(ntohl(v4.s_addr)))
    return refuse("; that is not one address of this machine: name the one to listen on");
  http.address = address;
  return Status();
}

Status read_http(const Section& root, Config& config) {
  if (root.find("http") == nullptr) return Status();
  SPECD_TRY(const Section section, root.section("http", {"listen", "stall_seconds"}));
  HttpOptions http;
  SPECD_OK_OR_RETURN(read_http_listen(section, http));
  SPECD_TRY(const int64_t stall,
            section.integer("stall_seconds", http.stall_seconds, 1, kStallSecondsMax));
  http.stall_seconds = static_cast<uint32_t>(stall);
  config.http = http;
  return Status();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kNameMax) return "";
  std::string best;
  size_t best_distance = (word.size() < 3 ? 1 : std::max<size_t>(2, word.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    // One word that begins with the other: 'warning' for 'warn'.
    const size_t shorter = std::min(word.size(), candidate.size());
    if (shorter >= 3 && word.substr(0, shorter) == candidate.substr(0, shorter) &&
        best_distance > 1) {
      best_distance = 1;
      best = candidate;
    }
    // Edit distance, one row at a time.
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

Result<Config> parse_config(std::string_view text, const std::string& file) {
  SPECD_TRY(const YamlNode node, parse_yaml(text, file));
  SPECD_TRY(const Section root,
            Section::open(node, file, "",
                          {"listen", "http", "log_level", "drain_seconds", "devices", "engine",
                           "model", "draft_models", "plugins", "default_route", "routes"}));
  Config config;
  config.file = file;
  collect_places(node, "", config.places);
  SPECD_OK_OR_RETURN(read_listen(root, config));
  SPECD_OK_OR_RETURN(read_http(root, config));
  SPECD_TRY(const std::string level,
            root.choice("log_level", {"debug", "info", "warn", "error", "off"}, "info"));
  config.log_level = level == "debug"  ? LogLevel::kDebug
                     : level == "info" ? LogLevel::kInfo
                     : level == "warn" ? LogLevel::kWarn
                     : level == "off"  ? LogLevel::kOff
                                       : LogLevel::kError;
  SPECD_TRY(const int64_t drain,
            root.integer("drain_seconds", config.drain_seconds, 0, kDrainSecondsMax));
  config.drain_seconds = static_cast<uint32_t>(drain);
  SPECD_OK_OR_RETURN(read_devices(root, config.engine));
  SPECD_OK_OR_RETURN(read_engine(root, config.engine));
  SPECD_OK_OR_RETURN(read_model(root, config.engine.model));
  SPECD_OK_OR_RETURN(read_draft_models(root, file, config.engine));
  SPECD_OK_OR_RETURN(read_plugins(root, config.engine));
  SPECD_OK_OR_RETURN(read_routes(root, file, config.engine));
  SPECD_OK_OR_RETURN(read_default_route(root, config.engine));
  return config;
}

std::string route_reason_with_place(const Config& config, const std::string& route,
                                    const std::string& reason) {
  for (const RouteOptions& one : config.engine.routes) {
    if (one.name != route) continue;
    const std::string key = key_of_reason(one, reason);
    return place_prefix(config, "routes." + route + (key.empty() ? "" : "." + key)) + reason;
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
      colon != std::string::npos && config.places.count(text.substr(0, colon)) != 0)
    return Status(status.code(),
                  place_prefix(config, text.substr(0, colon)) + text.substr(colon + 2));
  std::string path;
  if (begins_with(text, "plugin directory ")) path = "plugins.directories";
  if (begins_with(text, "plugin cache directory ")) path = "plugins.cache_directory";
  if (text.find(config.engine.model.path) != std::string::npos) path = "model.path";
  for (size_t i = 0; i < config.engine.draft_models.size(); ++i)
    if (begins_with(text, "draft_models." + config.engine.draft_models[i].name + ": "))
      path = "draft_models[" + std::to_string(i) + "]";
  return Status(status.code(), place_prefix(config, path) + text);
}

Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine) {
  SPECD_TRY(const YamlNode node, parse_yaml(text, file));
  std::vector<std::string> keys{"name"};
  keys.insert(keys.end(), kRouteKeys.begin(), kRouteKeys.end());
  SPECD_TRY(const Section section, Section::open(node, file, "", std::move(keys)));
  RouteFile result{.route = {}, .file = file, .places = {}};
  collect_places(node, "", result.places);
  SPECD_TRY(const std::string name, section.text("name"));
  SPECD_OK_OR_RETURN(check_route_name(section, section.find("name")->place, "name", name));
  SPECD_TRY(result.route, read_route(section, file, name, engine));
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
                  place_prefix(file.file, file.places, key_of_reason(file.route, reason)) + reason);
  }
  const size_t colon = rest.find(": ");  // ".draft_nodes_max: expected ..."
  if (!begins_with(rest, ".") || colon == std::string_view::npos) return status;
  return Status(status.code(),
                place_prefix(file.file, file.places, std::string(rest.substr(1, colon - 1))) +
                    std::string(rest.substr(colon + 2)));
}

Json route_to_json(const RouteOptions& route) {
  const auto use = [](const PluginUse& used) {
    Json json{{"plugin", used.plugin}, {"config", used.config}};
    if (!used.factory.empty()) json["factory"] = used.factory;
    return json;
  };
  // By structure, so that a field that is added cannot be forgotten here.
  const auto& [name, model, drafter, verifier, guarantee, draft_nodes_max, disable_by_batch_size] =
      route;
  return {{"name", name},
          {"model", model},
          {"guarantee", guarantee == Guarantee::kIdentical ? "identical"
                        : guarantee == Guarantee::kLaw     ? "law"
                                                           : "none"},
          {"draft_nodes_max", draft_nodes_max},
          {"disable_by_batch_size", disable_by_batch_size},
          {"drafter", use(drafter)},
          {"verifier", use(verifier)}};
}

Result<Config> load_config(const std::string& path) {
  SPECD_TRY(const std::string text, read_text_file(path, kYamlBytesMax));
  return parse_config(text, path);
}

}  // namespace specd::host
