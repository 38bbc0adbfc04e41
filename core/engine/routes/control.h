// Changes routes while requests run. A version is staged (loaded, checked, activated) while steps go
// on, and enters the table between two steps; which versions get new requests changes with the table.
// One change at a time; an error leaves everything as it was. A thread watches versions on probation
// and candidates. [control] all functions but those marked [any].
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/sha256.h"
#include "core/base/thread.h"
#include "core/engine.h"
#include "core/engine/intake.h"
#include "core/engine/models.h"
#include "core/engine/routes/board.h"
#include "core/engine/routes/life.h"
#include "core/engine/target.h"
#include "core/spec/route_builder.h"
#include "core/services/directory.h"

namespace specd {

struct RouteCommand {
  enum class Kind { kApply, kDelete, kStage, kTraffic, kPromote, kAbort, kRollBack };
  Kind kind = Kind::kApply;
  RouteOptions route = {};  // all of it for kApply and kStage, else its name
  int32_t share_percent = 0;
};

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
               }) {
    watcher_ = start_thread("specd-routes", [this] { watch(); });
  }
  ~RouteControl();

  // Discovers plugins. REQUIRES Models::open().
  Status open();
  // Of the drafters of the options' routes; 0 for those that are refused before they are made, load() says
  // why.
  std::vector<DrafterLimit> limits();
  // Stages the routes of the options. Fails when the default route cannot be served; another route is
  // logged and kept as refused. REQUIRES Models::load().
  Status load();

  // See Engine::apply_route() and those behind it.
  Result<RouteChange> change(const std::string& request_id, const RouteCommand& command);
  // Runs `task` between two steps, while no route changes. False when no step ended in time.
  bool between_steps(std::function<void()> task);

  // [any] The version of the route that a request names; empty = the default. `number`: the request's,
  // which says whether it falls into a candidate's share. Empty lease = plain decoding.
  Result<RouteLease> lease(const std::string& name, uint64_t number) const;
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
    Sha256Digest command;
    Result<RouteChange> reply;
  };
  // Loads, makes and activates the pair. Plugins that do not return in time are set aside.
  Result<Staged> make_staged(const RouteOptions& wanted) SPECD_REQUIRES(mutex_);
  Status make(Staging& staging, const std::atomic<bool>& is_late);
  Status rescan();
  // Refuses a plugin whose control call is late, and says so.
  Status set_aside(const std::string& plugin_id, const Status& late);
  void add_taps(std::vector<Transformer::Tap> taps) SPECD_REQUIRES(mutex_);  // and between steps
  bool is_current(const LiveRoute& route) const;  // made of the bundles that would be loaded now
  Result<RouteChange> run(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  // kApply and kStage.
  Result<RouteChange> add(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  Result<RouteChange> remove(const std::string& name) SPECD_REQUIRES(mutex_);
  Result<RouteChange> set_traffic(RouteTable table, RouteEntry& entry, int32_t percent)
      SPECD_REQUIRES(mutex_);
  Result<RouteChange> promote(RouteTable table, RouteEntry& entry) SPECD_REQUIRES(mutex_);
  Result<RouteChange> abort(RouteTable table, RouteEntry& entry, RouteEvent why)
      SPECD_REQUIRES(mutex_);
  Result<RouteChange> roll_back(RouteTable table, RouteEntry& entry, RouteEvent why)
      SPECD_REQUIRES(mutex_);
  // Publishes the table, and logs what that did to a version.
  Result<RouteChange> publish(RouteTable table, const RouteVersion& about, const std::string& what)
      SPECD_REQUIRES(mutex_);
  void watch();
  void look_at(const std::string& name) SPECD_REQUIRES(mutex_);

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
  CondVar changed_;                                            // wakes the watcher
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace specd
