// Changes routes while requests run.
//
//   RouteMaker makes a version while steps go on -> the change is planned as a new table -> RouteJournal has
//   it on disk -> the table is published, between two steps if the step thread must take part -> EventLog
//
// One change at a time; an error leaves everything as it was. A thread watches versions on probation and
// candidates. [control] all functions but those marked [any].
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/sha256.h"
#include "core/base/thread.h"
#include "core/engine.h"
#include "core/engine/event_log.h"
#include "core/engine/intake.h"
#include "core/engine/models.h"
#include "core/engine/routes/board.h"
#include "core/engine/routes/journal.h"
#include "core/engine/routes/life.h"
#include "core/engine/routes/maker.h"
#include "core/engine/routes/swap.h"
#include "core/engine/target.h"

namespace specd {

struct RouteCommand {
  enum class Kind { kApply, kDelete, kStage, kTraffic, kPromote, kAbort, kRollBack };
  Kind kind = Kind::kApply;
  RouteOptions route = {};  // all of it for kApply and kStage, else its name
  Traffic traffic = {};
  ChangeOptions how = {};
};

// What a change does to the requests. [step] between two steps, both; neither needs memory.
struct RequestHooks {
  std::function<void(const RouteSwap& swap, RouteChange& done)> swap;  // counts in `done`
  std::function<void(LiveRoute& live, std::shared_ptr<LiveRoute> shadow)> set_shadow;
};

class RouteControl {
 public:
  // All must outlive this. While a plugin's control call is late (n_late_works()), destroying this
  // waits for it.
  RouteControl(const EngineOptions& options, const Target& target, Models& models, Intake& intake,
               RequestHooks requests)
      : options_(options),
        intake_(intake),
        requests_(std::move(requests)),
        maker_(options, target, models, events_),
        board_(mutex_, std::chrono::seconds(options.plugin_control_seconds),
               [this](const std::string& route, uint64_t generation, const std::string& plugin_id,
                      const Status& late) {
                 return condemn_draining(route, generation, plugin_id, late);
               }) {
    watcher_ = start_thread("specd-routes", [this] { watch(); });
  }
  ~RouteControl();

  // Discovers plugins and reads the journal. REQUIRES Models::open().
  Status open();
  // Of the drafters of the routes that load() stages.
  std::vector<DrafterLimit> limits() { return maker_.limits(start_); }
  // Stages the routes of the options, as the journal has changed them. Fails when the default route cannot
  // be served; another route is logged and kept as refused. REQUIRES Models::load().
  Status load();

  // See Engine::apply_route() and those behind it.
  Result<RouteChange> change(const RouteCommand& command);
  // See Engine::configure_routes(), load_plugin() and retire_plugin().
  Result<ConfiguredRoutes> configure(const std::vector<RouteOptions>& routes,
                                     const ChangeOptions& how);
  Result<BundleInfo> load_plugin(const std::string& plugin_id, const std::string& request_id);
  Status retire_plugin(const std::string& plugin_id, const std::string& request_id);

  // [any] The version of the route that a request names; empty = the default. `number`: the request's,
  // which says whether it falls into a candidate's share. Empty lease = plain decoding.
  Result<RouteLease> lease(const std::string& name, uint64_t number) const;
  // [any]
  Result<RouteOptions> definition(const std::string& name) const;
  const RouteBoard& board() const { return board_; }
  const PluginRegistry& registry() const { return maker_.registry(); }
  const EventLog& events() const { return events_; }

 private:
  // A change that can be made.
  struct Plan {
    RouteTable table;
    EngineEvent event;                             // its kind, route, generation and text
    std::shared_ptr<LiveRoute> version = nullptr;  // that it is about
    std::shared_ptr<LiveRoute> to = nullptr;       // what other requests may attach to
    std::vector<Transformer::Tap> taps = {};       // new to the model
    bool at_boundary = false;
    bool is_way_back = false;  // is made even when it cannot be recorded
  };
  struct Reply {
    std::string request_id;
    Sha256Digest command;
    Result<RouteChange> reply;
  };

  Status take_from_journal();
  // The routes of the options, or of a later configuration, each with its model.
  std::vector<RouteOptions> with_model(std::vector<RouteOptions> routes) const;
  // What messages call it.
  static std::string version_name(const std::string& route, uint64_t generation);
  // Without its table.
  static Plan plan_for(EventKind kind, const RouteVersion& version, const std::string& what);
  Result<RouteChange> run(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  Result<RouteChange> run_one(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  // kApply and kStage.
  Result<RouteChange> add(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  // Makes the version and puts it into the table, after all checks.
  Result<RouteChange> make(RouteTable table, const RouteCommand& command) SPECD_REQUIRES(mutex_);
  // The same when the version that is live ends first (Replace::kStopFirst). If the new one then cannot be made,
  // the old one is made again, and if that fails too the route stays stopped.
  Result<RouteChange> stop_and_make(const RouteCommand& command, const DrafterLimit& limit)
      SPECD_REQUIRES(mutex_);
  // Ends the live version of a stopped entry: waits until no request has a version of the route, and all are
  // retired. Counts requests that lost theirs.
  Status stop(RouteTable table, const std::string& name, RouteChange& done) SPECD_REQUIRES(mutex_);
  // Makes the version that was stopped live again: the same if it is still there, else a new one of its definition.
  // Returns `because`, with what became of the route.
  Status bring_back(const RouteVersion& before, const std::weak_ptr<LiveRoute>& old,
                    const Status& because) SPECD_REQUIRES(mutex_);
  Result<RouteChange> remove(const RouteCommand& command) SPECD_REQUIRES(mutex_);
  Result<RouteChange> set_traffic(RouteTable table, RouteEntry& entry, const Traffic& traffic,
                                  const ChangeOptions& how) SPECD_REQUIRES(mutex_);
  // The candidate gets its thread, and is shown what the requests of the live version do.
  Status start_shadow(const RouteEntry& entry) SPECD_REQUIRES(mutex_);
  // If the candidate is a shadow it becomes a staged version, and `table`, which has the entry, is published.
  // Done before a change that ends the shadow, so it stays done when that change then fails.
  Status stop_shadow(const RouteTable& table, RouteEntry& entry) SPECD_REQUIRES(mutex_);
  // A version that is no shadow any more, or could not become one, works as its definition says. It is condemned
  // when it cannot.
  void apply_isolation(LiveRoute& version);
  // No step has ended, or there will be none.
  Status no_boundary() const;
  Result<RouteChange> promote(RouteTable table, RouteEntry& entry, const ChangeOptions& how)
      SPECD_REQUIRES(mutex_);
  // `why`: what the event says behind the rest.
  Result<RouteChange> abort(RouteTable table, RouteEntry& entry, RouteEvent event,
                            const std::string& why, const ChangeOptions& how)
      SPECD_REQUIRES(mutex_);
  Result<RouteChange> roll_back(RouteTable table, RouteEntry& entry, RouteEvent event,
                                const std::string& why, const ChangeOptions& how)
      SPECD_REQUIRES(mutex_);
  // Makes the change, or with dry_run says what it would do.
  Result<RouteChange> commit(Plan plan, const ChangeOptions& how) SPECD_REQUIRES(mutex_);
  // Publishes the table and changes requests.
  Status flip(Plan& plan, const ChangeOptions& how, RouteChange& done) SPECD_REQUIRES(mutex_);
  void not_recorded(const EngineEvent& event, const Status& why);
  void watch();
  void look_at(const std::string& name) SPECD_REQUIRES(mutex_);
  // The end of a version is late in a call of a plugin, which is set aside. Returns what to log.
  Status condemn_draining(const std::string& route, uint64_t generation,
                          const std::string& plugin_id, const Status& late);
  // Quarantines a version of the route that was condemned; see must_quarantine() in the .cc.
  void quarantine(RouteTable table, const std::string& name) SPECD_REQUIRES(mutex_);

  const EngineOptions& options_;
  Intake& intake_;
  const RequestHooks requests_;
  EventLog events_;
  std::vector<RouteOptions> configured_;  // the routes of the configuration
  std::vector<RouteOptions> start_;       // those to stage
  // Held while routes change and while instances are made or destroyed. Never taken by the step
  // thread.
  Mutex mutex_;
  RouteMaker maker_;
  RouteBoard board_;
  std::unique_ptr<RouteJournal> journal_;               // null = changes are not kept
  uint64_t generation_ SPECD_GUARDED_BY(mutex_) = 0;    // changes of the routes so far
  std::deque<Reply> replies_ SPECD_GUARDED_BY(mutex_);  // the last ones
  CondVar changed_;                                     // wakes the watcher
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace specd
