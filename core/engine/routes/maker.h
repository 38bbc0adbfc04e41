// Makes the pair of a route from its definition, within a time limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/engine/event_log.h"
#include "core/engine/models.h"
#include "core/engine/target.h"
#include "core/services/directory.h"
#include "core/spec/route_builder.h"

namespace specd {

// [control] all functions, one at a time.
class RouteMaker {
 public:
  // All must outlive this. A control call of a plugin that is late (n_late_works()) uses this.
  RouteMaker(const EngineOptions& options, const Target& target, Models& models, EventLog& events)
      : options_(options), target_(target), models_(models), events_(events) {}

  // Discovers plugins. REQUIRES Models::open().
  Status open();
  // What the drafter may take, as it says. Errors are those of drafter_limit(), or that it does not return in time.
  Result<DrafterLimit> limit(const RouteOptions& wanted);
  // Of the drafters of these routes, in their order; 0 for those that are refused before they are made.
  std::vector<DrafterLimit> limits(const std::vector<RouteOptions>& routes);
  // From here on plugins have the models. REQUIRES Models::load().
  void give_models();

  // That versions share with everything else. REQUIRES Models::load().
  std::span<const RouteMemory> memories() const { return models_.route_memories; }

  struct Made {
    std::unique_ptr<LiveRoute> route;
    std::vector<Transformer::Tap> taps;  // new to the model: for add_taps()
  };
  // Loads, checks, makes and activates the pair. Plugins that do not return in time are set aside. `generation`: of
  // the version, for events. `pending`: taps that are to be added before those of this pair.
  Result<Made> make(const RouteOptions& wanted, uint64_t generation,
                    const std::vector<Transformer::Tap>& pending = {});
  // Starts a thread of its own for the drafter: of a shadow, or guarded.
  Status set_beside(LiveRoute& route, bool is_shadow);
  // Ends the drafter's thread, if there is one, which nobody calls any more. kDeadlineExceeded when the call
  // that runs there does not return in time.
  Status end_beside(LiveRoute& route);
  // Adds taps to the model, between two steps.
  void add_taps(std::vector<Transformer::Tap> taps);
  // Discovers again.
  Status rescan();
  // See Engine::load_plugin().
  Status load_plugin(const std::string& plugin_id);
  // Refuses the plugin until it is loaded again. False when it was so already.
  Result<bool> retire_plugin(const std::string& plugin_id) { return registry_->retire(plugin_id); }
  // Refuses a plugin from now on, and says so. Returns what it is refused with.
  Status set_aside(const std::string& plugin_id, const Status& because);
  // The same for one whose control call is late, by Activity::plugin; only `late` when it is not known which.
  Status is_late(const std::string& plugin_id, const Status& late);
  // Whether the pair was made of the bundles that would be loaded now.
  bool is_current(const LiveRoute& route) const;
  const PluginRegistry& registry() const { return *registry_; }  // [any]

 private:
  // Shared with the thread that makes it, which may be late.
  struct Making {
    RouteOptions wanted;
    std::vector<uint32_t> tap_points;
    Made made;
    Status status;
  };
  Status make_within(Making& making, const std::atomic<bool>& is_late);

  const EngineOptions& options_;
  const Target& target_;
  Models& models_;
  EventLog& events_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<PluginRegistry> registry_;
  std::vector<uint32_t> tap_points_;  // the model's taps in their order
};

}  // namespace specd
