// The configuration that a daemon would run with, and where every value comes from.
#pragma once

#include <string>

#include "host/config/config.h"

namespace specd::host {

// YAML, a value a line, its origin in a comment behind it: FILE:LINE:COLUMN, the option or variable
// that gave it, or "default". A key that has no value stands as a comment. Paths are absolute, so
// that the text gives the same Config in whatever folder it is saved.
std::string print_config(const Config& config);

}  // namespace specd::host
