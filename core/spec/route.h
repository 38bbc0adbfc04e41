// A route as its operator defines it: a drafter, a verifier, what they must promise, their limits.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

// What a pair promises about the text, weakest first; see law 1 in core/DESIGN.md.
enum class Guarantee { kNone, kLaw, kIdentical };
const char* guarantee_name(Guarantee guarantee);

// Where the calls of a drafter run.
enum class Isolation {
  kNone,     // on the step's thread, which waits as long as they take
  kGuarded,  // on a thread of its own, for whose proposals the step waits for step_budget_us
  kProcess,  // the same in a process of its own, which may crash
};
const char* isolation_name(Isolation isolation);

// What becomes of the version that a route has when another one is applied.
enum class Replace {
  kOverlap,  // it serves until the new one does, so that both hold memory meanwhile
  kStopFirst,  // it ends before the new one is made; meanwhile the route's requests are decoded plainly
};
const char* replace_name(Replace replace);

struct PluginUse {
  std::string plugin;   // "specd.drafter.prompt_lookup"
  std::string factory;  // may be empty when the plugin has only one of the kind
  Json config = Json::object();

  bool operator==(const PluginUse&) const = default;
};

struct RouteOptions {
  std::string name;
  std::string model;
  PluginUse drafter;
  PluginUse verifier;
  Guarantee guarantee = Guarantee::kIdentical;  // the least that is accepted
  int32_t draft_nodes_max = 8;                  // static budget per sequence and step
  int32_t disable_by_batch_size = 0;            // no drafts while more sequences run; 0 = never
  bool suspend_when_slower =
      false;  // while its drafts cost more time than they save (core/spec/benefit.h)
  int32_t call_ms_max = 5000;  // deadline of a drafter's call in a step; 0 = none
  Isolation isolation = Isolation::kNone;
  int32_t step_budget_us = 20'000;      // see Isolation::kGuarded
  Replace replace = Replace::kOverlap;  // when this definition is applied
  // After a promotion the version before is kept so long, to go back to: by hand, or because the new one's
  // breaker opens. 0 = it is not kept.
  int32_t probation_seconds = 60;

  bool operator==(const RouteOptions&) const = default;
};

// Every value by its key in the configuration, and the name.
Json route_to_json(const RouteOptions& route);
// Reads that back. Keys that are missing keep their default. kDataLoss for keys that are unknown, and for
// values of a wrong type; ranges are not checked.
Result<RouteOptions> route_from_json(const Json& json);

}  // namespace specd
