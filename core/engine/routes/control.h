// Changes routes while requests run. A route is staged (loaded, checked, activated) while steps go
// on, and swapped in between two steps. One change at a time; an error leaves everything as it was.
// [control] all functions but those marked [any].
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/sha256.h"
#include "core/engine.h"
#include "core/engine/intake.h"
#include "core/engine/models.h"
#include "core/engine/routes/board.h"
#include "core/engine/target.h"
#include "core/spec/route_builder.h"
#include "core/services/directory.h"

namespace specd {

class RouteControl {
 public:
  // All must outlive this. While a plugin's control call is late (n_late_works()), destroying this
  // waits for it.
  RouteControl(const EngineOptions& options, const Target& target, Models& models, Intake& intake)
      : options_(options),
        target_(target),
        models_(models),
        intake_(intake),
        board_(mutex_, std::chrono::seconds(options.plugin_control_seconds),
               [this](const std::string& plugin_id, const Status& late) {
                 return set_aside(plugin_id, late);
               }) {}

  // Discovers plugins. REQUIRES Models::open().
  Status open();
  // Of the drafters of the options' routes; 0 for those that are refused before they are made, load() says
  // why.
  std::vector<DrafterLimit> limits();
  // Stages the routes of the options. Fails when the default route cannot be served; another route is
  // logged and kept as refused. REQUIRES Models::load().
  Status load();

  // See Engine::apply_route() and delete_route().
  Result<RouteChange> change(const std::string& request_id, const RouteOptions& wanted,
                             bool is_delete);
  // Runs `task` between two steps, while no route changes. False when no step ended in time.
  bool between_steps(std::function<void()> task);

  // [any] The route that a request names; empty = the default. Empty lease = plain decoding.
  Result<RouteLease> lease(const std::string& name) const;
  // [any]
  Result<RouteOptions> definition(const std::string& name) const;
  const RouteBoard& board() const { return board_; }
  const PluginRegistry& registry() const { return *registry_; }

 private:
  struct Staged {
    std::unique_ptr<LiveRoute> route;
    std::vector<Transformer::Tap> taps;  // new to the model
  };
  // Shared with the thread that stages, which may be late.
  struct Staging {
    RouteOptions wanted;
    std::vector<uint32_t> tap_points;
    Staged staged;
    Status status;
  };
  struct Reply {
    std::string request_id;
    Sha256Digest wanted;
    bool is_delete;
    Result<RouteChange> reply;
  };
  // Loads, makes and activates the pair. Plugins that do not return in time are set aside.
  Result<Staged> stage(const RouteOptions& wanted) SPECD_REQUIRES(mutex_);
  Status make(Staging& staging, const std::atomic<bool>& is_late);
  Status rescan();
  // Refuses a plugin whose control call is late, and says so.
  Status set_aside(const std::string& plugin_id, const Status& late);
  void add_taps(std::vector<Transformer::Tap> taps) SPECD_REQUIRES(mutex_);  // and between steps
  bool is_current(const LiveRoute& route) const;  // made of the bundles that would be loaded now
  Result<RouteChange> apply(const RouteOptions& wanted) SPECD_REQUIRES(mutex_);
  Result<RouteChange> remove(const std::string& name) SPECD_REQUIRES(mutex_);

  const EngineOptions& options_;
  const Target& target_;
  Models& models_;
  Intake& intake_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<PluginRegistry> registry_;
  // Held while routes change and while instances are made or destroyed. Never taken by the step
  // thread.
  Mutex mutex_;
  RouteBoard board_;
  std::vector<uint32_t> tap_points_ SPECD_GUARDED_BY(mutex_);  // the model's taps in their order
  uint64_t generation_ SPECD_GUARDED_BY(mutex_) = 0;           // changes of the routes so far
  std::deque<Reply> replies_ SPECD_GUARDED_BY(mutex_);         // the last ones
};

}  // namespace specd
