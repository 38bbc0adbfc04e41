// A route as reports show it: its definition, its state, what it runs and what it has counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/spec/route.h"

namespace specd {

// Of a version of a route.
enum class RouteState {
  kDiscovered,   // its definition is known, and its plugins' bundles are
  kLoaded,       // its pair is made
  kStaged,       // and could serve
  kShadow,       // sees what is committed, and decides nothing
  kCanary,       // gets a share of the new requests
  kLive,         // gets the others
  kDraining,     // was replaced, deleted or aborted, but requests run with it or the route keeps it
  kRetired,      // is destroyed
  kQuarantined,  // must not be called any more; its requests are decoded plainly
  // A route without a version: the last one ended to make room, and the next is not made yet or could not be. Its
  // requests are decoded plainly.
  kStopped,
  kRefused,  // could not be made at the start
};
inline constexpr RouteState kLastRouteState = RouteState::kRefused;
// Whether a request that names the route means this version; a route has at most one.
constexpr bool stands_for_route(RouteState state) {
  return state == RouteState::kLive || state == RouteState::kRefused ||
         state == RouteState::kStopped || state == RouteState::kQuarantined;
}
// Whether there are instances of it.
constexpr bool has_pair(RouteState state) {
  return state != RouteState::kRefused && state != RouteState::kStopped;
}
const char* route_state_name(RouteState state);

struct PluginVersion {
  std::string version;
  std::string sha256;  // of the library
};

// Calls of one function of a plugin.
struct CallCounts {
  uint64_t calls = 0, ns = 0, failures = 0;
};

// What a plugin counts through the metrics service.
struct PluginMetricReport {
  std::string plugin, kind;  // "specd.drafter.replay", "drafter"
  std::string name, help;    // [a-z][a-z0-9_]*
  bool counter = false;
  double value = 0;
};

// Why a drafter is suspended for a while.
enum class SuspensionRule : size_t {
  kDefect,    // calls in a row failed, or gave nothing of use
  kDeadline,  // or took longer than call_ms_max
  kDevice,    // or lost their work on the device
  kBenefit,   // its drafts cost more time than they save
};
constexpr std::array<const char*, 4> kSuspensionRuleNames = {"defect", "deadline", "device",
                                                             "benefit"};

// Counts of a live route include those of its other generations with the same plugins, but a candidate's,
// so they only grow.
struct RouteCounts {
  uint64_t requests = 0, steps = 0;
  uint64_t drafts = 0;  // with at least one node
  uint64_t drafted = 0, accepted = 0, rejected = 0, discarded = 0;
  std::vector<uint64_t> accepted_at;  // accepted nodes by depth - 1
  uint64_t forward_ns = 0;            // its share of the forwards, by rows
  uint64_t cut = 0;                   // proposals and verdicts with a defect
  uint64_t cut_verdicts = 0;          // of these the verdicts
  uint64_t hidden_bytes = 0;          // of hidden states, copied for a drafter beside the step
  uint64_t process_ends =
      0;  // of the drafter's process, by itself or because it was killed for a defect
  std::array<uint64_t, kSuspensionRuleNames.size()> suspensions{};  // by rule
  uint64_t lost = 0;                           // requests that a drafter failed, or that outgrew it
  CallCounts begin, propose, update;           // of the drafter
  CallCounts verify;                           // of the verifier
  std::vector<PluginMetricReport> of_plugins;  // gauges: of the current instances
};

struct RouteReport {
  RouteOptions options = {};
  RouteState state = RouteState::kLive;
  Status refused =
      {};  // or stopped, why; its field is a key of the route: "drafter.config.max_nodes"
  bool is_default = false;
  int32_t share_percent = 0;                  // of a canary: of the new requests
  uint64_t generation = 0;                    // number of the change that made it; 1 = the start
  int32_t in_use = 0;                         // texts that wait or run with this generation
  PluginVersion drafter = {}, verifier = {};  // what it runs; empty when refused
  int32_t draft_nodes_max = 0;                // granted
  uint64_t memory_bytes = 0;                  // held by the drafter now, through memory/1
  uint64_t memory_bytes_max = 0;              // limit from activation on
  uint64_t ring_bytes = 0;                    // of its calls beside the step, now
  bool drafts_on_device = false;              // so its memory is there, else the host's
  // Does not draft now: more than disable_by_batch_size sequences run, or the drafter is suspended.
  bool suspended = false;
  RouteCounts counts = {};
  std::string last_problem = {};  // the last defect or loss, in words

  const std::string& name() const { return options.name; }
};

}  // namespace specd
