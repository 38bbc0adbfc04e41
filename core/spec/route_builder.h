// Turns the definition of a route into a pair of activated instances.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "core/device/device.h"
#include "core/spec/live_route.h"
#include "core/plugin/bundle/registry.h"
#include "core/spec/route.h"

namespace specd {

// For drafters in processes of their own.
struct ProcessTerms {
  std::string program;  // specd-runner
  PluginRegistry::Options registry;
  std::string isa;  // of the engine
  bool bf16 = false;
  std::chrono::milliseconds limit{0};  // for making and activating one
};

// What all routes of an engine have in common.
struct RouteTerms {
  bool is_strict = true;  // a row's bits do not depend on the batch; else no kIdentical
  int32_t max_sequences = 0;
  int32_t step_rows_max = 0;
  ProcessTerms process = {};
};

// Instances are made and destroyed by work that may be late (see run_within()). Once `is_late` is
// true, none of these functions makes a further call into plugins, and those that return a Status
// fail. ~LiveRoute() does not know the time: the work must own the route, so that it stays.

// Loads the plugins, checks the pair and its limits, and creates both instances in `route`, which is
// new, without activating them: this takes only memory that the plugins allocate themselves. The
// field of an error is a key of the route in the configuration: "drafter.config.max_nodes",
// "guarantee". [control]
Status create_route(LiveRoute& route, PluginRegistry& registry, const RouteOptions& wanted,
                    const RouteTerms& terms, const specd_target_info& target,
                    const std::atomic<bool>& is_late);
// Where a pair works with models on such a device: in the device's memory, or in the host's.
// kFailedPrecondition when it can use neither.
struct Placement {
  bool drafts_on_device = false;
  bool verifies_on_device = false;  // in the stream, with the proposals
};
Result<Placement> place(const LiveRoute& route, bool device_is_host,
                        const std::string& device_name);
// What a route's drafter may take, as it says before it is made.
struct DrafterLimit {
  std::string route = {};
  uint64_t bytes = 0;
  bool is_with_models = true;  // in the memory of the models' device, else in the host's
  uint64_t ring_bytes = 0;     // in the host's, for its calls, if it works beside the step
};
// Loads the plugins and checks the pair. `device_bytes`: memory of the device. Errors as create_route(), but
// for what create() itself says. [control]
Result<DrafterLimit> drafter_limit(PluginRegistry& registry, const RouteOptions& wanted,
                                   const RouteTerms& terms, const specd_target_info& target,
                                   bool device_is_host, uint64_t device_bytes,
                                   const std::atomic<bool>& is_late);
// Why the drafter cannot work beside the step, guarded or as a shadow; empty when it can.
std::string why_not_beside(const LiveRoute& route, bool is_shadow);
// Starts the thread of an active drafter, of a shadow or of a guarded one, or the work of its process. `cpu`: the
// engine's. [control]
Status start_beside(LiveRoute& route, const specd_target_info& target, CpuDevice& cpu,
                    bool is_shadow);
// Activates both instances, which may take their memory; then the route can serve. `device` is that
// of the models. Errors as above. [control]
Status activate_route(LiveRoute& route, const RouteTerms& terms, const specd_target_info& target,
                      Device& device, const std::atomic<bool>& is_late);
// Ends the drafter's thread, if it has one, and deactivates and destroys the instances that there are.
// [control]
void destroy_route(LiveRoute& route, const std::atomic<bool>& is_late);

}  // namespace specd
