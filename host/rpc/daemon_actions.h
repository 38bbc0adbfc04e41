// What the daemon does for operators who call specd.v1.Control.
#pragma once

#include <functional>

#include "core/engine.h"

namespace specd::host {

// [any]
struct DaemonActions {
  std::function<void()> drain;  // as SIGTERM; returns at once
  // Reads the configuration again, as SIGHUP.
  std::function<Result<ConfiguredRoutes>(const ChangeOptions&)> reload;
};

}  // namespace specd::host
