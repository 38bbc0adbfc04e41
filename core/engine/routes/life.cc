#include "core/engine/routes/life.h"

#include <string>

namespace specd {
namespace {

struct Row {
  RouteState state;
  RouteEvent event;
  RouteStep step;
};

using S = RouteState;
using E = RouteEvent;

constexpr Row kTable[] = {
    {S::kDiscovered, E::kMade, {S::kLoaded, 0}},
    {S::kDiscovered, E::kFailed, {S::kRetired, kDestroy}},
    {S::kDiscovered, E::kCondemn, {S::kQuarantined, kSetAside}},

    {S::kLoaded, E::kActivated, {S::kStaged, 0}},
    {S::kLoaded, E::kFailed, {S::kRetired, kDestroy}},
    {S::kLoaded, E::kCondemn, {S::kQuarantined, kSetAside}},

    {S::kStaged, E::kShadow, {S::kShadow, kStartShadow}},
    {S::kStaged, E::kShare, {S::kCanary, kPublish}},
    {S::kStaged, E::kNoTraffic, {S::kStaged, 0}},
    {S::kStaged, E::kPromote, {S::kLive, kPublish}},
    {S::kStaged, E::kAbort, {S::kDraining, kPublish}},
    // By requests that it got as a canary.
    {S::kStaged, E::kTrip, {S::kDraining, kPublish}},
    {S::kStaged, E::kCondemn, {S::kQuarantined, kPublish | kSetAside}},

    {S::kShadow, E::kShadow, {S::kShadow, 0}},
    {S::kShadow, E::kShare, {S::kCanary, kStopShadow | kPublish}},
    {S::kShadow, E::kNoTraffic, {S::kStaged, kStopShadow}},
    {S::kShadow, E::kPromote, {S::kLive, kStopShadow | kPublish}},
    {S::kShadow, E::kAbort, {S::kDraining, kStopShadow | kPublish}},
    {S::kShadow, E::kTrip, {S::kDraining, kStopShadow | kPublish}},
    {S::kShadow, E::kCondemn, {S::kQuarantined, kStopShadow | kPublish | kSetAside}},

    {S::kCanary, E::kShadow, {S::kShadow, kPublish | kStartShadow}},
    {S::kCanary, E::kShare, {S::kCanary, kPublish}},
    {S::kCanary, E::kNoTraffic, {S::kStaged, kPublish}},
    {S::kCanary, E::kPromote, {S::kLive, kPublish}},
    {S::kCanary, E::kAbort, {S::kDraining, kPublish}},
    {S::kCanary, E::kTrip, {S::kDraining, kPublish}},
    {S::kCanary, E::kCondemn, {S::kQuarantined, kPublish | kSetAside}},

    // Its breaker suspends it and tries it again; texts do not wait for that.
    {S::kLive, E::kTrip, {S::kLive, 0}},
    {S::kLive, E::kTripOnProbation, {S::kDraining, kPublish | kFlipBack}},
    {S::kLive, E::kReplace, {S::kDraining, kPublish}},
    {S::kLive, E::kCondemn, {S::kQuarantined, kPublish | kFlipBack | kSetAside}},

    {S::kDraining, E::kTrip, {S::kDraining, 0}},
    {S::kDraining, E::kRollBack, {S::kLive, kPublish}},
    {S::kDraining, E::kRelease, {S::kRetired, kDestroy}},
    {S::kDraining, E::kCondemn, {S::kQuarantined, kSetAside}},

    {S::kQuarantined, E::kRelease, {S::kRetired, kDestroy}},
};

const char* words_of(RouteEvent event) {
  switch (event) {
    case E::kMade:
      return "be made";
    case E::kActivated:
      return "be activated";
    case E::kFailed:
      return "fail to start";
    case E::kShadow:
      return "become a shadow";
    case E::kShare:
      return "get a share of the requests";
    case E::kNoTraffic:
      return "lose its share of the requests";
    case E::kPromote:
      return "be promoted";
    case E::kReplace:
      return "be replaced";
    case E::kRollBack:
      return "be rolled back to";
    case E::kAbort:
      return "be aborted";
    case E::kRelease:
      return "be released";
    case E::kTrip:
      return "trip its breaker";
    case E::kTripOnProbation:
      return "fail its probation";
    case E::kCondemn:
      break;
  }
  return "be quarantined";
}

}  // namespace

Result<RouteStep> route_step(RouteState state, RouteEvent event) {
  for (const Row& row : kTable) {
    if (row.state == state && row.event == event) return row.step;
  }
  return Status(
      Code::kFailedPrecondition,
      std::string("a version that is ") + route_state_name(state) + " cannot " + words_of(event));
}

}  // namespace specd
