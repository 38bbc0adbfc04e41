// What requests get whose route has another version now.
#pragma once

#include <memory>
#include <string>

#include "core/engine.h"
#include "core/spec/live_route.h"

namespace specd {

struct RouteSwap {
  std::string route;
  std::shared_ptr<LiveRoute> to = nullptr;  // for those that attach; null = there is none
  RunningRequests running = RunningRequests::kKeep;
  bool dry_run = false;  // only counts
};

}  // namespace specd
