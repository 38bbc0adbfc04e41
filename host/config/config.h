// The configuration file: strict YAML to the engine's options and the host's own.
//
// Every error is one line: FILE:LINE:COLUMN: key.path: expected, found, and the nearest known key.
// The keys are in config_keys.cc, and for people in configs/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/engine.h"
#include "host/config/config_overrides.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

// Where metrics and probes are served.
struct HttpOptions {
  std::string address;          // a literal of IPv4 or IPv6, no wildcard
  uint16_t port = 0;            // 0 = one that is free
  uint32_t stall_seconds = 60;  // a step that takes longer makes /health/live fail

  bool operator==(const HttpOptions&) const = default;
};

struct Config {
  std::string file;
  std::string socket_path;  // absolute
  LogLevel log_level = LogLevel::kInfo;
  uint32_t drain_seconds = 30;      // how long running requests may finish after SIGTERM
  std::optional<HttpOptions> http;  // none = no listener
  EngineOptions engine;
  YamlNode root;  // the file with what overrides it: every value's origin
};

// Reads and checks `path`, with `overrides` over it. Relative paths are taken from the file's own
// folder. The model folder and the plugin directories must exist; what is in them is
// check_options()'s business.
Result<Config> load_config(const std::string& path, const Overrides& overrides = {});

// The same for text that is already here; `file` names it and gives the folder.
Result<Config> parse_config(std::string_view text, const std::string& file,
                            const Overrides& overrides = {});

// An error of the engine with the place of its field in front: "FILE:LINE:COLUMN: key.path: ...". If
// the file lacks the key, the place is that of its mapping. An error without a field stays as it is.
Status with_place(const Config& config, const Status& status);

// One route on its own: the keys of a route of the configuration, and its `name`.
struct RouteFile {
  RouteOptions route;
  std::string file;
  YamlNode root;
};
// YAML, or JSON, which is YAML. `file` stands in errors; `engine` is what the route has to fit.
Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine);
// The same for an error about this route; other errors stay as they are.
Status with_place(const RouteFile& file, const Status& status);
// What parse_route() reads back as the same route.
Json route_to_json(const RouteOptions& route);

}  // namespace specd::host
