// The socket of a service manager, as $NOTIFY_SOCKET names it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {

class NotifySocket {
 public:
  // A path, or "@NAME" for an abstract one.
  explicit NotifySocket(const std::string& name) : name_(name) {
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0)
        << std::strerror(errno);
  }
  ~NotifySocket() { close(socket_); }

  void start(Daemon& daemon, const char* watchdog_us = nullptr) {
    daemon.spawn([&] {
      setenv("NOTIFY_SOCKET", name_.c_str(), 1);
      if (watchdog_us == nullptr) return;
      setenv("WATCHDOG_USEC", watchdog_us, 1);
      setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
    });
    // Read meanwhile: a socket keeps some ten messages.
    ASSERT_TRUE(eventually([&] {
      (void)told();
      return daemon.output().find(" ready on unix:") != std::string::npos;
    })) << daemon.output();
  }
  // Everything that came so far, a line each.
  const std::string& told() {
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(socket_, buffer, sizeof(buffer), 0)) > 0;)
      told_ += std::string(buffer, static_cast<size_t>(n)) + "\n";
    return told_;
  }
  bool was_told(const std::string& words) {
    return eventually([&] { return told().find(words) != std::string::npos; });
  }
  size_t count(const std::string& words) {
    size_t n = 0;
    for (size_t at = told().find(words); at != std::string::npos; at = told_.find(words, at + 1))
      ++n;
    return n;
  }

 private:
  std::string name_, told_;
  int socket_ = -1;
};

}  // namespace specd::host
