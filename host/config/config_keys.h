// The table of all keys of a configuration. A new key is a line in config_keys.cc.
#pragma once

#include <functional>

#include "host/config/config.h"
#include "host/config/config_key.h"

namespace specd::host {

// A section of Config.
const Key& config_keys();
// A section of RouteOptions: the keys of one route, and its `name`.
const Key& route_file_keys();

// From values in normal form, as read_value() gives them, to structs and back. load(): missing keys
// keep their defaults. save(): members that mean "not given" are left out.
void load(const Json& values, Config& config);
void load(const Json& values, RouteOptions& route);
Json save(Config config);
Json save(RouteOptions route);

// Calls `visit` with every key that holds a value, and its path: "model.kv.dtype", "devices[]",
// "draft_models[].name", "routes.NAME.drafter.plugin".
void for_each_key(const std::function<void(const std::string& path, const Key& key)>& visit);

}  // namespace specd::host
