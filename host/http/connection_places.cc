#include "host/http/connection_places.h"

#include <utility>

namespace specd::host {

SeatedConnection::SeatedConnection(std::string origin, ConnectionPlaces& places)
    : places_(places), origin_(std::move(origin)) {}

SeatedConnection::~SeatedConnection() { places_.leave(*this); }

bool ConnectionPlaces::take(SeatedConnection& connection) {
  std::shared_ptr<SeatedConnection> oldest;  // let go outside of the lock
  const MutexLock lock(mutex_);
  int* const of_origin = connection.origin_.empty() ? nullptr : &of_origin_[connection.origin_];
  if (of_origin != nullptr && *of_origin >= of_origin_max_) return false;
  all_.insert(&connection);  // leave() removes it
  if (n_free_ > 0) {
    --n_free_;
  } else {
    while (oldest == nullptr && !waiting_.empty()) {
      oldest = waiting_.begin()->second.lock();
      if (oldest == nullptr) waiting_.erase(waiting_.begin());  // it is being destroyed
    }
    if (oldest == nullptr) return false;
    oldest->close();  // first, since it may throw
    waiting_.erase(std::exchange(oldest->wait_, 0));
    oldest->has_place_ = false;
  }
  if (of_origin != nullptr) ++*of_origin;
  connection.has_place_ = connection.is_counted_ = true;
  return true;
}

bool ConnectionPlaces::wait(SeatedConnection& connection) {
  const MutexLock lock(mutex_);
  if (connection.has_place_ && connection.wait_ == 0) {
    waiting_.emplace(n_waits_ + 1, connection.weak_from_this());  // first, since it may throw
    connection.wait_ = ++n_waits_;
  }
  return connection.has_place_;
}

void ConnectionPlaces::stop_waiting(SeatedConnection& connection) {
  const MutexLock lock(mutex_);
  if (connection.wait_ != 0) waiting_.erase(std::exchange(connection.wait_, 0));
}

void ConnectionPlaces::leave(SeatedConnection& connection) {
  const MutexLock lock(mutex_);
  if (connection.wait_ != 0) waiting_.erase(connection.wait_);
  if (connection.has_place_) ++n_free_;
  if (const auto of_origin = of_origin_.find(connection.origin_); of_origin != of_origin_.end()) {
    if (connection.is_counted_) --of_origin->second;
    if (of_origin->second == 0) of_origin_.erase(of_origin);
  }
  all_.erase(&connection);
  if (all_.empty()) empty_.notify_all();
}

std::vector<std::shared_ptr<SeatedConnection>> ConnectionPlaces::all() {
  std::vector<std::shared_ptr<SeatedConnection>> live;
  const MutexLock lock(mutex_);
  live.reserve(
      all_.size());  // else a connection let go here, for want of memory, would wait for the lock
  for (SeatedConnection* const each : all_) {
    if (auto connection = each->weak_from_this().lock()) live.push_back(std::move(connection));
  }
  return live;
}

bool ConnectionPlaces::wait_empty(std::chrono::milliseconds timeout) {
  const auto deadline = CondVar::Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!all_.empty()) {
    if (!empty_.wait_until(lock, deadline)) return all_.empty();
  }
  return true;
}

}  // namespace specd::host
