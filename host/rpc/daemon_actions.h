// What the daemon does for operators who call specd.v1.Control.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine.h"

namespace specd::host {

// What a configuration that was read again has changed.
struct Reloaded {
  ConfiguredRoutes routes;
  std::vector<std::string> settings;  // "drain_seconds: 9, was 30"
};

// [any]
struct DaemonActions {
  std::function<void()> drain;  // as SIGTERM; returns at once
  // Reads the configuration again, as SIGHUP.
  std::function<Result<Reloaded>(const ChangeOptions&)> reload;
};

}  // namespace specd::host
