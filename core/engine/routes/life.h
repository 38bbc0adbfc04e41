// The life of a version of a route, which is one definition made of the bundles that were there: which state
// follows which, and what has to be done on the way. A table and no more: it knows no instance, thread or
// clock. RouteControl moves versions by it, from kStaged on.
//
//   discovered -> loaded -> staged <-> shadow, canary -> live -> draining -> retired
//
// A draining version that a route keeps as its previous one may become live again. One that must not run any
// more is quarantined, whatever it was.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/spec/route_report.h"

namespace specd {

enum class RouteEvent {
  kMade,       // its libraries are loaded and its pair is made
  kActivated,  // the pair has its memory
  kFailed,     // one of the two failed
  kShadow,     // is to see what is committed, and to decide nothing
  kShare,      // is to get a share of the new requests
  kNoTraffic,  // neither
  kPromote,    // is to get the other new requests
  kReplace,    // another version gets them, or the route is deleted
  kRollBack,   // it was replaced, and is to get them again
  kAbort,      // is not wanted after all
  kRelease,    // no request, and no route, has it any more
  kTrip,       // its breaker has opened
  kTripOnProbation,
  kCondemn,  // a call does not return
};
inline constexpr RouteEvent kLastRouteEvent = RouteEvent::kCondemn;

// What has to be done, as bits.
enum RouteAction : uint32_t {
  kPublish = 1 << 0,      // who gets new requests has changed
  kStartShadow = 1 << 1,  // show it what is committed
  kStopShadow = 1 << 2,
  kFlipBack = 1 << 3,  // kRollBack for the route's previous version
  kDestroy = 1 << 4,   // deactivate and destroy the pair
  kSetAside = 1 << 5,  // load its bundle no more until its files change
};

struct RouteStep {
  RouteState next = RouteState::kRetired;
  uint32_t actions = 0;
};
// kFailedPrecondition, in words, when that cannot happen to a version in this state.
Result<RouteStep> route_step(RouteState state, RouteEvent event);

// Whether new requests may get a version in this state.
constexpr bool takes_requests(RouteState state) {
  return state == RouteState::kLive || state == RouteState::kCanary;
}

}  // namespace specd
