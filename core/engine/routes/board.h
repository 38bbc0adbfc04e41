// Which routes can be asked for, and what becomes of those that were replaced.
//
// The table is immutable and stands behind one pointer. submit() reads it and gives the request a
// lease of its route: waiting and running requests keep the pair they were admitted with, whatever
// is published meanwhile. A pair that is in no table any more drains. Whoever lets go of it last, a
// request or a reader of an old table, only queues it; the retirer, a thread of its own,
// deactivates and destroys the instances. So the step thread makes no control call, and no step can
// touch what is being destroyed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/engine.h"
#include "core/spec/live_route.h"

namespace specd {

struct RouteEntry {
  RouteOptions options;
  std::shared_ptr<LiveRoute> live;  // null when the route cannot be served
  Status refused;                   // then: why; its field is a key of the route
};
using RouteTable = std::map<std::string, RouteEntry>;  // by name; without "off"

class RouteBoard {
 public:
  // `control` is held around the control calls of plugins; it outlives this.
  explicit RouteBoard(std::mutex& control);
  // Retires every route. REQUIRES no lease and no table of this outside.
  ~RouteBoard();

  // [any] Never null.
  std::shared_ptr<const RouteTable> read() const;
  // [any] A route that retires when nobody holds it any more, published or not.
  std::shared_ptr<LiveRoute> share(std::unique_ptr<LiveRoute> route);
  // Puts `table` in the place of the old one; what was replaced drains. One call at a time.
  void publish(RouteTable table);
  // [any] The routes of the table, then the draining ones.
  std::vector<RouteReport> report() const;

 private:
  struct Draining {
    RouteOptions options;
    const LiveRoute* route;
  };
  void retire_loop();

  std::mutex& control_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const RouteTable> table_;           // guarded by mutex_
  std::vector<Draining> draining_;                    // guarded by mutex_
  std::map<std::string, RouteReport> past_;           // guarded by mutex_; counts of the retired
  std::vector<std::unique_ptr<LiveRoute>> released_;  // guarded by mutex_; to be retired
  bool stopping_ = false;                             // guarded by mutex_
  std::thread thread_;
};

}  // namespace specd
