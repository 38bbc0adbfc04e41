#include "host/config/config.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/config/config_keys.h"
#include "host/config/yaml_reader.h"

namespace specd::host {
namespace {

// Where copies of plugin libraries go unless the file says.
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

constexpr size_t kUsersMax = 64;

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Status check_kserve(const Config& config) {
  const KserveOptions& kserve = *config.kserve;
  if (kserve.socket_path.empty() && !is_loopback(kserve.address))
    return {Code::kInvalidArgument, "kserve.listen",
            "expected a socket or a loopback address such as 127.0.0.1, because other machines "
            "can reach " +
                kserve.address};
  if (kserve.socket_path.empty() && !kserve.insecure)
    return {Code::kInvalidArgument, "kserve.insecure",
            "expected true, because everybody on this machine can reach " + kserve.address +
                "; or serve unix:PATH"};
  const bool is_taken =
      kserve.socket_path == config.socket_path ||
      (config.control.has_value() && kserve.socket_path == config.control->socket_path);
  if (is_taken)
    return {Code::kInvalidArgument, "kserve.listen",
            "expected a socket of its own; " + kserve.socket_path + " serves specd's protocol"};
  return Status();
}

// What the keys of the sockets and of their users cannot say alone.
Status check_doors(const Config& config) {
  if (config.control.has_value() && config.control->socket_path == config.socket_path)
    return {Code::kInvalidArgument, "control.listen",
            "expected another socket than `listen`; without `control` that one serves both"};
  if (config.users.size() > kUsersMax)
    return {Code::kInvalidArgument, "users",
            "expected at most " + std::to_string(kUsersMax) + " users, found " +
                std::to_string(config.users.size())};
  for (size_t i = 0; i < config.users.size(); ++i) {
    const UserOptions& user = config.users[i];
    const std::string field = "users[" + std::to_string(i) + "]";
    if (user.name.empty() && user.certificate.empty())
      return {Code::kInvalidArgument, field,
              "expected `name`, of a user of this machine, or `certificate`, for clients over TCP"};
    if (!user.name.empty() && !user.id.has_value())
      return {Code::kInvalidArgument, field + ".name",
              "expected a user of this machine, found " + quote(user.name) +
                  ", whom it does not know any more"};
    const bool has_port = config.tcp.has_value() && config.tcp->tls.has_value();
    if (user.name.empty() && !has_port)
      return {Code::kInvalidArgument, field + ".certificate",
              "expected `tcp` with `tls`, where clients show certificates, or a user of this "
              "machine by `name`"};
    for (size_t j = 0; j < i; ++j) {
      const UserOptions& other = config.users[j];
      if (user.name.empty() && user.certificate == other.certificate)
        return {Code::kInvalidArgument, field + ".certificate",
                "expected each name once, found " + quote(user.certificate) + " again"};
      if (!user.name.empty() && user.id == other.id)
        return {Code::kInvalidArgument, field + ".name",
                "expected each user once, found " + other.name + " and " + user.name +
                    ", who are the same"};
    }
  }
  if (config.tcp.has_value() && !config.tcp->tls.has_value() && !is_loopback(config.tcp->address))
    return {Code::kInvalidArgument, "tcp.tls",
            "expected certificates, because other machines can reach " + config.tcp->address +
                "; without them only a loopback address such as 127.0.0.1 is served"};
  return config.kserve.has_value() ? check_kserve(config) : Status();
}

// ---- the place of a field -----------------------------------------------------------------------

// Points at a value, or at its key.
enum class At { kKey, kValue };

// An error about `field` with the place of the longest part of its path that the file has.
Status placed(const std::string& file, const YamlNode& root, const std::string& field,
              const Status& status, At at) {
  const YamlNode* found = &root;
  std::string path = "." + field;
  while (!path.empty()) {
    const YamlNode* child = nullptr;
    size_t longest = 0;  // names may contain dots
    const auto consider = [&](const YamlNode& item, const std::string& step) {
      const bool is_whole =
          path.size() <= step.size() || path[step.size()] == '.' || path[step.size()] == '[';
      if (step.size() <= longest || !is_whole || !path.starts_with(step)) return;
      child = &item;
      longest = step.size();
    };
    for (size_t i = 0; i < found->items.size(); ++i) {
      const YamlNode& item = found->items[i];
      const bool is_list = found->kind == YamlNode::Kind::kSequence;
      consider(item, "." + (is_list ? std::to_string(i) : item.key));  // plugins write ".0"
      if (is_list) consider(item, "[" + std::to_string(i) + "]");
    }
    if (child == nullptr) break;
    found = child;
    path.erase(0, longest);
  }
  // A mapping has its place at its key.
  const bool is_mapping = path.empty() && found->kind == YamlNode::Kind::kMap;
  const YamlPlace& place = at == At::kKey || is_mapping ? found->key_place : found->place;
  return {status.code(), error_front(file, place, field) + status.message()};
}

// `field` of a route, as the route's own file names it: without "routes.NAME.". What concerns the
// whole route concerns its name. None if the field is not this route's.
std::optional<std::string> own_field(const std::string& field, const std::string& route) {
  const std::string front = "routes." + route;
  if (field == front) return "name";
  if (!field.starts_with(front + ".")) return std::nullopt;
  return field.substr(front.size() + 1);
}

// A tree in which everything is as it will be.
Result<Config> config_of(YamlNode root, const std::string& file) {
  Config config;
  config.file = file;
  config.root = std::move(root);
  SPECD_OK_OR_RETURN(read_value(keys_of(config), {.node = config.root, .file = file}));
  EngineOptions& engine = config.engine;
  if (engine.plugin_cache_directory.empty())
    engine.plugin_cache_directory = default_cache_directory();
  if (const Status status = check_doors(config); !status.ok())
    return placed(file, config.root, status.field(), status, At::kValue);
  for (RouteOptions& route : engine.routes)
    if (route.model.empty()) route.model = engine.model.name;
  if (const Status status = check_limits(engine); !status.ok())
    return placed(file, config.root, status.field(), status, At::kValue);
  return config;
}

}  // namespace

Result<Config> parse_config(std::string_view text, const std::string& file,
                            const Overrides& overrides) {
  SPECD_TRY(YamlNode root, parse_yaml(text, file));
  SPECD_OK_OR_RETURN(apply_overrides(overrides, config_keys(), root));
  return config_of(std::move(root), file);
}

Status with_place(const Config& config, const Status& status) {
  if (status.field().empty()) return status;
  return placed(config.file, config.root, status.field(), status, At::kKey);
}

Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine) {
  RouteFile result{.route = {}, .file = file, .root = {}};
  RouteOptions& route = result.route;
  SPECD_TRY(result.root, parse_yaml(text, file));
  SPECD_OK_OR_RETURN(read_value(keys_of(route), {.node = result.root, .file = file}));
  if (route.model.empty()) route.model = engine.model.name;
  if (const Status status = check_route(route, engine); !status.ok()) {
    const std::string field = own_field(status.field(), route.name).value_or("");
    return placed(file, result.root, field, status, At::kValue);
  }
  return result;
}

Status with_place(const RouteFile& file, const Status& status) {
  const auto field = own_field(status.field(), file.route.name);
  return field ? placed(file.file, file.root, *field, status, At::kKey) : status;
}

Result<Config> load_tree(YamlNode root, const std::string& path) {
  SPECD_TRY(Config config, config_of(std::move(root), path));
  std::string& base = config.engine.config_directory;
  std::error_code unused;
  if (base.empty()) base = std::filesystem::absolute(path, unused).parent_path().string();
  return config;
}

Result<Config> load_config(const std::string& path, const Overrides& overrides) {
  SPECD_TRY(const std::string text, read_text_file(path, kYamlBytesMax));
  SPECD_TRY(YamlNode root, parse_yaml(text, path));
  SPECD_OK_OR_RETURN(apply_overrides(overrides, config_keys(), root));
  SPECD_TRY(Config config, load_tree(std::move(root), path));
  config.read_again = [path, overrides] { return load_config(path, overrides); };
  return config;
}

}  // namespace specd::host
