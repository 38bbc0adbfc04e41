// From a route's words to a pair of activated instances.
#pragma once

#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/spec/live_route.h"
#include "core/plugin/bundle/registry.h"
#include "core/spec/route.h"

namespace specd {

// What holds for all routes of an engine.
struct RouteTerms {
  bool is_strict = true;  // rows have the same bits in any company; else no pair reaches kIdentical
  int32_t max_sequences = 0;
};

// Loads what is not loaded, checks the pair and its limits, creates both. Not activated yet: costs
// no memory but the plugins' own. The field of an error is a key of the route in the configuration:
// "drafter.config.max_nodes", "guarantee". [control]
Result<std::unique_ptr<LiveRoute>> create_route(PluginRegistry& registry,
                                                const RouteOptions& wanted, const RouteTerms& terms,
                                                const specd_target_info& target);
// Whether the pair can work beside such a device, and whether it works in its memory.
struct Placement {
  bool drafts_on_device = false, verifies_on_device = false;
};
Result<Placement> place(const LiveRoute& route, bool device_is_host,
                        const std::string& device_name);
// Takes memory. After it the route may serve. [control]
// `device` is that of the models: the drafter is granted its memory where it can use it, else the
// host's. Errors as above.
Status activate_route(LiveRoute& route, const RouteTerms& terms, Device& device);

}  // namespace specd
