#include "core/spec/route_report.h"

namespace specd {

const char* route_state_name(RouteState state) {
  switch (state) {
    case RouteState::kDiscovered:
      return "discovered";
    case RouteState::kLoaded:
      return "loaded";
    case RouteState::kStaged:
      return "staged";
    case RouteState::kShadow:
      return "shadow";
    case RouteState::kCanary:
      return "canary";
    case RouteState::kLive:
      return "live";
    case RouteState::kDraining:
      return "draining";
    case RouteState::kRetired:
      return "retired";
    case RouteState::kQuarantined:
      return "quarantined";
    case RouteState::kStopped:
      return "stopped";
    case RouteState::kRefused:
      break;
  }
  return "refused";
}

}  // namespace specd
