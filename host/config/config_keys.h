// The table of all keys of a configuration. A new key is a line here.
#pragma once

#include "host/config/config_key.h"

namespace specd::host {

// A section of Config.
const Key& config_keys();
// A section of RouteOptions: the keys of one route, and its `name`.
const Key& route_file_keys();

// Calls `visit` with every key that holds a value, and its path: "model.kv.dtype", "devices[]",
// "draft_models[].name", "routes.NAME.drafter.plugin".
void for_each_key(const std::function<void(const std::string& path, const Key& key)>& visit);

}  // namespace specd::host
