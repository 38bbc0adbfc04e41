// The places of a server's connections: how many there may be at once, and which of them gives its place up when a new
// one comes. Knows no sockets.
//
//   ConnectionPlaces places(64, 32);
//   const auto connection = std::make_shared<Connection>(...);  // a SeatedConnection
//   if (places.take(*connection)) connection->start();
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/mutex.h"

namespace specd::host {

class ConnectionPlaces;

// What the places know of a connection, which derives from this. A std::shared_ptr owns it. As the base it is destroyed
// behind the connection's own members: once the places are empty, nothing of any connection is left.
class SeatedConnection : public std::enable_shared_from_this<SeatedConnection> {
 public:
  // `origin`: whose limit it counts against; empty = none.
  SeatedConnection(std::string origin, ConnectionPlaces& places);
  SeatedConnection(const SeatedConnection&) = delete;
  SeatedConnection& operator=(const SeatedConnection&) = delete;
  virtual ~SeatedConnection();

  // Both may throw std::bad_alloc, and then have done nothing.
  // [any] Ends it, whatever it does. Called under the lock of the places, so it must not call them.
  virtual void close() = 0;
  // [any] Ends it as soon as its client has the answer to the request that it has read.
  virtual void retire() = 0;

 private:
  friend class ConnectionPlaces;

  ConnectionPlaces& places_;
  const std::string origin_;
  // Guarded by the mutex of places_.
  bool has_place_ = false, is_counted_ = false;
  uint64_t wait_ = 0;  // its key among those that wait, else 0
};

// A connection that waits for its client gives its place up when a new connection needs it: the one that has waited
// longest.
class ConnectionPlaces {
 public:
  ConnectionPlaces(int n, int of_origin_max) : n_free_(n), of_origin_max_(of_origin_max) {}
  // [any] Takes a place for a new connection. False when all others have a place and do not wait, or when its origin
  // has too many. Throws std::bad_alloc, and then has changed nothing.
  bool take(SeatedConnection& connection);
  // [any] From now on `connection` waits for its client, until the call of stop_waiting(). False when its place is gone.
  // Throws std::bad_alloc.
  bool wait(SeatedConnection& connection);
  void stop_waiting(SeatedConnection& connection);
  // [any] The connections that took a place and still exist. Throws std::bad_alloc.
  std::vector<std::shared_ptr<SeatedConnection>> all();
  // [any] Waits until there is none; false at the timeout.
  bool wait_empty(std::chrono::milliseconds timeout);

 private:
  friend class SeatedConnection;
  void leave(SeatedConnection& connection);

  Mutex mutex_;
  CondVar empty_;
  int n_free_ SPECD_GUARDED_BY(mutex_);
  const int of_origin_max_;
  std::map<std::string, int> of_origin_ SPECD_GUARDED_BY(mutex_);
  uint64_t n_waits_ SPECD_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::weak_ptr<SeatedConnection>> waiting_ SPECD_GUARDED_BY(mutex_);
  std::set<SeatedConnection*> all_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd::host
