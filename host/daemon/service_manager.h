// Tells systemd how the daemon is, or whoever else gives it $NOTIFY_SOCKET: the protocol of sd_notify(3),
// without libsystemd. Without that variable nothing is told.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/file_descriptor.h"

namespace specd::host {

class ServiceManager {
 public:
  // Takes $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID out of the environment, so that no child of a
  // plugin speaks for the daemon. REQUIRES that no other thread runs. What is wrong with them is logged.
  ServiceManager();

  // What the manager does not take at once is lost.
  void loading(const std::string& what, double fraction);  // and asks for more time
  // [any] These wait for it, at most two seconds.
  void ready(const std::string& status);  // also after reloading()
  void reloading();
  void stopping(const std::string& status);
  // [any] To be called at least every watchdog_period(). `step_age_ns`: since the present step began. Silent when
  // that is more than the manager's patience, so that a daemon whose step hangs is restarted.
  void beat(uint64_t step_age_ns);

  // Half of the manager's patience; the largest value when it has no watchdog.
  std::chrono::milliseconds watchdog_period() const;

 private:
  void send(const std::string& state, int flags = 0);

  FileDescriptor socket_;  // connected; none = nobody is told
  uint64_t watchdog_us_ = 0;
  std::string stage_;  // that loading() told last
};

}  // namespace specd::host
