// Values as YAML that this daemon's reader, and any other, reads back as the same.
#pragma once

#include <string>

#include "core/base/json.h"

namespace specd::host {

// One scalar, in quotes where a reader could take it for something else.
// REQUIRES text in UTF-8 (parse_yaml() lets nothing else in)
std::string yaml_scalar(const Json& value);
// In one line: "[a, {b: 1}]".
std::string yaml_flow(const Json& value);

}  // namespace specd::host
