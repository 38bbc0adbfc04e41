// The configuration that a daemon would run with, and where every value comes from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "host/config/config.h"

namespace specd::host {

// YAML with one value a line, each followed by its origin in a comment: FILE:LINE:COLUMN, the
// option or variable that gave it, or "default". A key without a value becomes a comment. Paths are
// absolute, so that the text gives the same Config in whatever folder it is saved.
std::string print_config(const Config& config);

// Every value with its key, {"engine.queue_max", "256"}, wherever it comes from.
std::vector<std::pair<std::string, std::string>> config_values(const Config& config);

// A value on one line of YAML, "[a, {b: 1}]", with quotes wherever a reader might mistake a text
// for something else. REQUIRES text in UTF-8 (parse_yaml() lets nothing else in)
std::string yaml_flow(const Json& value);

}  // namespace specd::host
