// The configuration file: strict YAML to the engine's options and the host's own.
//
// Every error is one line: FILE:LINE:COLUMN: key.path: expected, found, and the nearest known key.
// The schema is in configs/README.md.
#pragma once

#include <cstdint>
#include <string>

#include "core/engine.h"

namespace specd::host {

struct Config {
  std::string file;
  std::string socket_path;  // absolute
  LogLevel log_level = LogLevel::kInfo;
  uint32_t drain_seconds = 30;  // how long running requests may finish after SIGTERM
  EngineOptions engine;
};

// Reads and checks `path`. Relative paths in it are taken from its own folder. The model folder and
// the plugin directories must exist; what is in them is check_options()'s business.
Result<Config> load_config(const std::string& path);

// The same for text that is already here; `file` names it and gives the folder.
Result<Config> parse_config(std::string_view text, const std::string& file);

// The candidate nearest to `word` by edit distance, or "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace specd::host
