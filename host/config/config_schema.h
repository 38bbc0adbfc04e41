// The table of keys told to others: to editors as a JSON Schema (2020-12), to readers as a table.
#pragma once

#include <string>
#include <vector>

namespace specd::host {

// configs/specd.schema.json. What it refuses, the reader refuses too; what only the machine can
// tell (that a folder exists) or several keys together, the reader refuses alone.
std::string config_schema();
// The table of configs/README.md, in Markdown.
std::string config_table();
// Every key that --set can name without naming a route or an index: "engine.threads".
std::vector<std::string> settable_keys();

}  // namespace specd::host
