// Files that the configuration names and a reload reads again: certificates, and keys of the HTTP API.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "host/config/config.h"
#include "host/http/http_door.h"
#include "host/rpc/tls.h"

namespace specd::host {

// What a file holds by now, in place of what is in use.
struct Renewed {
  std::string news;           // for people; empty = nothing is new
  std::function<void()> use;  // takes it over; throws nothing
};
// Reads it. Errors have the place in the configuration.
using Renewal = std::function<Result<Renewed>()>;

// Who may use the HTTP API, by the keys of the file as it was read last.
class Doorkeeper {
 public:
  explicit Doorkeeper(HttpDoor door) : door_(std::make_shared<const HttpDoor>(std::move(door))) {}
  std::shared_ptr<const HttpDoor> door() const {
    const MutexLock lock(mutex_);
    return door_;
  }
  void use(std::shared_ptr<const HttpDoor> door) {
    const MutexLock lock(mutex_);
    door_ = std::move(door);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const HttpDoor> door_ SPECD_GUARDED_BY(mutex_);
};

// Loads the certificates of both ports and the keys of the HTTP API, where the configuration has them, and how to read
// each of them again. All outlive the renewals. Errors have the place in the configuration.
Status load_keys(const Config& config, std::unique_ptr<TlsKeys>& tcp_tls,
                 std::unique_ptr<TlsKeys>& http_tls, std::unique_ptr<Doorkeeper>& doorkeeper,
                 std::vector<Renewal>& renewals);

}  // namespace specd::host
