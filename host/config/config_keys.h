// The table of all keys of a configuration. A new key is a line in config_keys.cc.
#pragma once

#include <functional>
#include <string>

#include "host/config/config.h"
#include "host/config/config_key.h"

namespace specd::host {

// The keys as a section, bound to the members of a configuration, or of a route in a file of its
// own. They must not outlive it.
Key keys_of(Config& config);
Key keys_of(RouteOptions& route);

// The keys alone; their members hold the defaults.
const Key& config_keys();

// Visits every key below `parent` with its path ("model.kv.dtype", "devices[]",
// "draft_models[].name", "routes.NAME.drafter.plugin") and the key in whose `keys` it is.
using KeyVisitor = std::function<void(const std::string& path, const Key& key, const Key& parent)>;
void for_each_key(const KeyVisitor& visit, const Key& parent = config_keys(),
                  const std::string& path = "");

}  // namespace specd::host
