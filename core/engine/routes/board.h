// The routes that requests can use, and the retirement of versions that were replaced.
//
// The table is immutable and is replaced as a whole. submit() reads it and gives the request a
// lease of its version: waiting and running requests keep the pair they were admitted with, whatever
// is published meanwhile, unless Batch::swap_routes() gives them another one. A pair that is no longer in the table drains. Its last holder, a request
// or a reader of an old table, only queues it; a separate thread, the retirer, deactivates and
// destroys the instances. So the step thread makes no control call, and no step uses what is being
// destroyed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/base/mutex.h"
#include "core/engine.h"
#include "core/engine/routes/room.h"
#include "core/spec/live_route.h"

namespace specd {

struct RouteVersion {
  RouteOptions options;
  std::shared_ptr<LiveRoute> route = nullptr;  // null when it is refused or stopped
  RouteState state = RouteState::kLive;
};
inline bool has_route(const std::optional<RouteVersion>& version) {
  return version.has_value() && version->route != nullptr;
}
inline bool is_condemned(const std::optional<RouteVersion>& version) {
  return has_route(version) && version->route->is_condemned();
}

// At least one of live and candidate is there.
struct RouteEntry {
  std::optional<RouteVersion> live = {};       // kLive, kRefused, kStopped or kQuarantined
  Status refused = {};                         // why, then; its field is a key of the route
  std::optional<RouteVersion> candidate = {};  // kStaged, kShadow or kCanary
  int32_t share_percent = 0;                   // of the new requests, for the candidate
  std::optional<RouteVersion> previous = {};   // kDraining; kept while the live one is on probation
  uint64_t probation_end_ns = 0;
};
using RouteTable = std::map<std::string, RouteEntry>;  // by name; without "off"

class RouteBoard {
 public:
  // Told of a version whose end is late in the call of a plugin, with `control` held; returns what to log.
  using OnLate = std::function<Status(const std::string& route, uint64_t generation,
                                      const std::string& plugin_id, const Status& late)>;

  // `control` is held around control calls of plugins; it must outlive this. `time_limit`: for
  // deactivating and destroying a pair; one that takes longer is left alone with its memory.
  RouteBoard(Mutex& control, std::chrono::seconds time_limit, OnLate on_late);
  // Retires every route and waits for late calls of plugins, however long that takes. REQUIRES that
  // nobody holds a lease or a table of this any more.
  ~RouteBoard();

  // [any] Never null.
  std::shared_ptr<const RouteTable> read() const;
  // [any] Makes a route that retires when its last holder releases it, published or not.
  std::shared_ptr<LiveRoute> share(std::unique_ptr<LiveRoute> route);
  // Replaces the table; the routes that were replaced drain. One call at a time.
  void publish(RouteTable table);
  // Retires those that nobody holds any more, here and now. REQUIRES that the caller holds `control`.
  void retire_released();
  // [any] False while a call of a plugin of the route's versions is late: then they cannot be retired.
  bool may_stop(const std::string& name) const;
  // [any] Whether a version of the route drains, and is not retired yet.
  bool is_draining(const std::string& name) const;
  // What each version may hold: those of the table, those that drain, and those that could not be ended.
  // REQUIRES that the caller holds `control`.
  std::vector<VersionMemory> held() const;
  // [any] The routes that have a candidate or a previous version, or whose drafter works beside the step.
  std::vector<std::string> watched() const;
  // [any] The versions of the table by route, live, candidate, previous; then the others that drain.
  // `n_running`: sequences that run.
  std::vector<RouteReport> report(int32_t n_running) const;

 private:
  struct Draining {
    RouteOptions options;
    uint64_t generation;
    const LiveRoute* route;  // null while its instances are being destroyed
  };
  // A route that nobody holds any more, and the work that deactivates and destroys its pair.
  struct Retiring {
    std::string name;
    uint64_t generation = 0;
    std::shared_ptr<std::unique_ptr<LiveRoute>> route;
    std::function<void(const std::atomic<bool>& is_late)> destroy;
    VersionMemory memory = {};
    bool is_last = false;  // the board ends
  };
  void retire_loop();
  // The one that is to be retired next: none of its plugins is in a late call. Null when there is none.
  std::unique_ptr<LiveRoute>* next_released() SPECD_REQUIRES(mutex_);
  Retiring take(std::unique_ptr<LiveRoute>& from) SPECD_REQUIRES(mutex_);
  // False when some are left: there is no memory to take the next, or its plugin is in a late call. It is tried
  // again later.
  bool retire_all();
  RouteCounts counts_before(const RouteEntry& entry) const SPECD_REQUIRES(mutex_);
  void retire(Retiring& next);

  Mutex& control_;
  const std::chrono::seconds time_limit_;
  const OnLate on_late_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const RouteTable> table_ SPECD_GUARDED_BY(mutex_);
  std::vector<Draining> draining_ SPECD_GUARDED_BY(mutex_);
  std::vector<VersionMemory> left_alone_ SPECD_GUARDED_BY(mutex_);  // that could not be ended
  // Counts of the retired versions, by route and plugins, see counts_key().
  std::map<std::string, RouteCounts> past_ SPECD_GUARDED_BY(mutex_);
  // To be retired, linked by next_released: releasing a route takes no memory.
  std::unique_ptr<LiveRoute> released_ SPECD_GUARDED_BY(mutex_);
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  // Of the retirer. A turn waits for a change of the routes, and takes as long as the versions that it retires: several
  // slow ones in a row count as stuck, too.
  Heartbeat beat_;
  std::thread thread_;
};

}  // namespace specd
