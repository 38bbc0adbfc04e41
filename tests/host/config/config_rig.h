// A folder with everything a configuration may name, and a configuration with every key.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "host/config/config.h"
#include "tests/host/base/read_file.h"

namespace specd::host {

namespace fs = std::filesystem;

using OrderedJson = nlohmann::ordered_json;

// Equal in what they say, whatever their files.
inline void expect_same(const Config& a, const Config& b, const std::string& what) {
  EXPECT_EQ(a.socket_path, b.socket_path) << what;
  EXPECT_TRUE(a.control == b.control) << what;
  EXPECT_TRUE(a.tcp == b.tcp) << what;
  EXPECT_EQ(a.users, b.users) << what;
  EXPECT_EQ(a.log_level, b.log_level) << what;
  EXPECT_EQ(a.drain_seconds, b.drain_seconds) << what;
  EXPECT_EQ(a.http, b.http) << what;
  EXPECT_EQ(a.kserve, b.kserve) << what;
  EXPECT_TRUE(a.engine == b.engine) << what;
}

// A folder with model/, draft/, plugins/ and run/.
class ConfigFolder {
 public:
  ConfigFolder() {
    std::string pattern = (fs::temp_directory_path() / "specd-config-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    for (const char* name : {"model", "draft", "plugins", "run"})
      fs::create_directory(path_ / name);
  }
  ~ConfigFolder() { fs::remove_all(path_); }
  ConfigFolder(const ConfigFolder&) = delete;
  ConfigFolder& operator=(const ConfigFolder&) = delete;

  const fs::path& path() const { return path_; }
  std::string file() const { return (path_ / "c.yaml").string(); }
  Result<Config> parse(const std::string& text, const Overrides& overrides = {}) const {
    return parse_config(text, file(), overrides);
  }
  // The message with the folder cut from its front, or "ok".
  std::string error(const std::string& text, const Overrides& overrides = {}) const {
    const Result<Config> config = parse(text, overrides);
    if (config.ok()) return "ok";
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    std::string message = config.status().text();
    const std::string front = path_.string() + "/";
    if (message.starts_with(front)) message.erase(0, front.size());
    return message;
  }

 private:
  fs::path path_;
};

// Every key of the table, but of those that exclude each other only the first.
inline OrderedJson every_key() {
  return OrderedJson::parse(R"({
    "listen": "unix:run/s.sock",
    "control": {"listen": "unix:run/c.sock"},
    "tcp": {"listen": "0.0.0.0:8443",
            "tls": {"certificate": "s.pem", "key": "s.key", "client_ca": "c.pem"}},
    "users": [{"name": "4711", "rights": ["infer"], "requests_max": 3, "waiting_max": 2, "bytes_max": "1MiB"}],
    "http": {"listen": "127.0.0.1:9090", "api_keys_file": "keys", "tls": {"certificate": "h.pem", "key": "h.key"}, "unknown_fields": "reject", "page": true, "stall_seconds": 7},
    "kserve": {"listen": "127.0.0.1:8001", "insecure": true, "model_version": 3,
               "metrics_listen": "127.0.0.1:8002"},
    "log_level": "warn",
    "drain_seconds": 5,
    "state_directory": "run",
    "devices": ["cuda:0"],
    "engine": {"threads": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
               "rank_timeout_seconds": 7, "rank_bytes_max": "7GiB", "isa": "avx2",
               "numerics": "fast", "max_sequences": 4,
               "step_tokens_max": 64, "queue_max": 3, "priority_aging_ms": 250},
    "model": {"name": "m", "path": "model", "chat_template": "chat.jinja", "generation_config": false,
              "kv": {"dtype": "f16", "bytes_max": "3MiB", "prefix_cache": false}},
    "draft_models": [{"name": "d", "path": "draft", "kv": {"dtype": "f32"}, "tensor_parallel_size": 1, "device": "cpu"}],
    "plugins": {"directories": ["plugins"], "cache_directory": "cache",
                "base_directory": "base",
                "approved": {"sha256": ["0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],
                             "keys": ["key.pem"]},
                "control_seconds": 9},
    "default_route": "r",
    "routes": {"r": {"model": "m", "guarantee": "law", "draft_nodes_max": 9,
                     "disable_by_batch_size": 3, "suspend_when_slower": true, "call_ms_max": 250, "isolation": "guarded", "step_budget_us": 900,
                     "replace": "stop_first", "probation_seconds": 7,
                     "drafter": {"plugin": "x.y", "factory": "f", "config": {"n": 3}},
                     "verifier": {"plugin": "v", "factory": "g", "config": {"t": "yes"}}}}
  })");
}

// Raw text that replaces the value at a path.
struct RawYaml {
  std::string path;  // "model.kv.dtype", "devices[0]"
  std::string text;
};

// Block YAML written by the test itself, which so knows the place of each value.
class PlacedYaml {
 public:
  explicit PlacedYaml(const OrderedJson& json, RawYaml raw = {}) : raw_(std::move(raw)) {
    write(json, "", 0);
  }
  const std::string& text() const { return text_; }
  // "6:12" of the value of a path.
  std::string place(const std::string& path) const { return places_.at(path); }

 private:
  void write(const OrderedJson& json, const std::string& path, size_t indent) {
    if (!raw_.path.empty() && path == raw_.path) return put(path, raw_.text);
    if (json.empty() || json.is_primitive()) return put(path, json.dump());
    if (indent > 0) text_ += "\n";
    ++line_;
    // The place of a mapping or list is that of its first key or dash.
    places_[path] = std::to_string(line_) + ":" + std::to_string(indent + 1);
    size_t index = 0;
    for (const auto& [key, value] : json.items()) {
      if (index > 0) line_ += 1;
      const std::string front = json.is_array() ? "-" : key + ":";
      text_ += std::string(indent, ' ') + front;
      column_ = indent + front.size() + 2;
      write(value,
            json.is_array() ? path + "[" + std::to_string(index) + "]"
                            : (path.empty() ? key : path + "." + key),
            indent + 2);
      ++index;
    }
  }
  void put(const std::string& path, const std::string& value) {
    places_[path] = std::to_string(line_) + ":" + std::to_string(column_);
    text_ += " " + value + "\n";
  }

  RawYaml raw_;
  std::string text_;
  std::map<std::string, std::string> places_;
  size_t line_ = 0, column_ = 1;
};

// "a.b[0].c" as a pointer into a tree.
inline OrderedJson::json_pointer pointer_of(std::string path) {
  std::string pointer = "/";
  for (const char c : path)
    if (c == '.' || c == '[')
      pointer += '/';
    else if (c != ']')
      pointer += c;
  return OrderedJson::json_pointer(pointer);
}

inline void erase_at(OrderedJson& json, const std::string& path) {
  const auto pointer = pointer_of(path);
  OrderedJson& parent = json[pointer.parent_pointer()];
  if (parent.is_array())
    parent.erase(std::stoul(pointer.back()));
  else
    parent.erase(pointer.back());
}

}  // namespace specd::host
