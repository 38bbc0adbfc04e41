// The configuration file: from strict YAML to the options of the engine and of the host. The keys
// are in config_keys.cc, and for people in configs/README.md.
//
// Every error is one line: FILE:LINE:COLUMN: key.path: expected, found, and the nearest known key.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"
#include "host/config/config_overrides.h"
#include "host/config/user_options.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

enum class UnknownFields { kReport, kReject };

// PEM files, by absolute paths.
struct TlsOptions {
  std::string certificate, key;  // of the server
  std::string client_ca;         // whose signature a client's certificate needs; empty for HTTP

  bool operator==(const TlsOptions&) const = default;
};

// Where the HTTP API, metrics and probes are served.
struct HttpOptions {
  std::string address;          // a literal of IPv4 or IPv6, no wildcard
  uint16_t port = 0;            // 0 = one that is free
  uint32_t stall_seconds = 60;  // a step that takes longer makes /health/live fail
  std::string
      api_keys_file;  // absolute; empty = no keys, and the API is for loopback addresses alone
  std::optional<TlsOptions> tls;  // none = plain, and the API is for loopback addresses alone
  UnknownFields unknown_fields = UnknownFields::kReport;  // in bodies of requests
  bool page = false;                                      // which shows texts of all users

  bool operator==(const HttpOptions&) const = default;
};

struct ControlOptions {
  std::string socket_path;  // absolute

  bool operator==(const ControlOptions&) const = default;
};

struct TcpOptions {
  std::string address;            // a literal of IPv4 or IPv6
  uint16_t port = 0;              // 0 = one that is free
  std::optional<TlsOptions> tls;  // none = on a loopback address, Inference for everybody there

  bool operator==(const TcpOptions&) const = default;
};

// Triton's gRPC protocol, inference.GRPCInferenceService, for Inference alone.
struct KserveOptions {
  std::string socket_path;  // absolute; empty = at `address`
  std::string address;      // a loopback literal of IPv4 or IPv6
  uint16_t port = 0;        // 0 = one that is free
  bool insecure = false;    // everybody on this machine may use it; a port needs that
  int32_t model_version = 1;
  std::string metrics_address;  // of Triton's names of metrics, over HTTP; empty = not served
  uint16_t metrics_port = 0;

  bool operator==(const KserveOptions&) const = default;
};

struct Config {
  std::string file;
  std::string socket_path;                // absolute
  std::optional<ControlOptions> control;  // none = Control is served on the other socket
  std::optional<TcpOptions> tcp;          // none = no port
  std::vector<UserOptions> users;         // who may connect beside the user of the daemon and root
  LogLevel log_level = LogLevel::kInfo;
  uint32_t drain_seconds = 30;      // how long running requests may finish after SIGTERM
  std::optional<HttpOptions> http;  // none = no listener
  std::optional<KserveOptions> kserve;
  EngineOptions engine;
  YamlNode root;  // the file with what overrides it: where every value comes from
  // What its files say by now, read in the same way; empty for text that was already read.
  std::function<Result<Config>()> read_again = {};
  std::vector<std::string> warnings = {};  // for people: what was read and has no effect

  // As Triton's clients see it.
  int32_t model_version() const { return kserve.has_value() ? kserve->model_version : 1; }
};

// Reads and checks `path`, and `overrides` over it. Relative paths start at the file's folder, also
// those of weights in configurations of plugins, which start at plugins.base_directory. The
// model folder and the plugin directories must exist; check_options() looks inside.
Result<Config> load_config(const std::string& path, const Overrides& overrides = {});

// The same for text that is already read; `file` names it and gives the folder.
Result<Config> parse_config(std::string_view text, const std::string& file,
                            const Overrides& overrides = {});

// The same for a tree that was made of the file at `path`, with what overrides it: the places of its
// nodes are there, unless they have a source.
Result<Config> load_tree(YamlNode root, const std::string& path);

// Puts the place of its field in front of an engine's error: "FILE:LINE:COLUMN: key.path: ...". A
// key that the file lacks has the place of its mapping. Errors without a field stay as they are.
Status with_place(const Config& config, const Status& status);

// A route in a file of its own: the keys of a route in the configuration, and its `name`.
struct RouteFile {
  RouteOptions route;
  std::string file;
  YamlNode root;
};
// Reads YAML, or JSON, which is YAML. `file` appears in errors; the route must fit `engine`.
Result<RouteFile> parse_route(std::string_view text, const std::string& file,
                              const EngineOptions& engine);
// The same for errors about this route; others stay as they are.
Status with_place(const RouteFile& file, const Status& status);

}  // namespace specd::host
