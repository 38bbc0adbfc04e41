#include "core/spec/route_report.h"

namespace specd {

const char* route_state_name(RouteState state) {
  switch (state) {
    case RouteState::kLive:
      return "live";
    case RouteState::kRefused:
      return "refused";
    case RouteState::kDraining:
      break;
  }
  return "draining";
}

}  // namespace specd
