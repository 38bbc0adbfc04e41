// Tells systemd how the daemon is, or whoever else gives it $NOTIFY_SOCKET: the protocol of sd_notify(3),
// without libsystemd. Without that variable nothing is told.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"

namespace specd::host {

class ServiceManager {
 public:
  // Takes $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID out of the environment, so that no child of a
  // plugin speaks for the daemon. REQUIRES that no other thread runs. What is wrong with them is logged.
  ServiceManager();

  // What the manager does not take at once is told again with the next call.
  void loading(const std::string& what, double fraction);  // and asks for more time
  // [any] These wait for it, at most two seconds. After stopping() the others say nothing.
  void ready(const std::string& status);  // also after reloading()
  void reloading();
  void stopping(const std::string& status);
  // [any] To be called at least every watchdog_period(). `step_age_ns`: since the present step began. Silent when
  // that is more than the manager's patience, so that a daemon whose step hangs is restarted.
  void beat(uint64_t step_age_ns);

  // Half of the manager's patience; the largest value when it has no watchdog.
  std::chrono::milliseconds watchdog_period() const;

 private:
  // False when the manager does not take it.
  bool send(const std::string& state, int flags = 0);

  FileDescriptor socket_;  // none = nobody is told
  sockaddr_un address_{};  // whom; named each time, since a manager may start anew
  socklen_t address_bytes_ = 0;
  uint64_t watchdog_us_ = 0;
  std::string stage_;  // that loading() told last
  Mutex mutex_;        // of the order of what is told
  bool is_stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_failed_{false};
};

}  // namespace specd::host
