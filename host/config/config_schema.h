// Exports the table of keys: a JSON Schema (2020-12) for editors, Markdown for people.
#pragma once

#include <string>
#include <vector>

namespace specd::host {

// configs/specd.schema.json. The reader refuses all that the schema refuses, and also what a schema
// cannot express, such as missing folders.
std::string config_schema();
// The table of configs/README.md, in Markdown.
std::string config_table();
// Every key that --set can name without the name of a route or an index: "engine.threads".
std::vector<std::string> settable_keys();

}  // namespace specd::host
