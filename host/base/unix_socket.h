// The daemon's Unix socket: rules for its path, and the lock that keeps a second daemon away.
#pragma once

#include <cstddef>
#include <string>

#include "core/engine.h"

namespace specd::host {

constexpr size_t kSocketPathMax = 107;  // sockaddr_un, less its final zero

// "unix:/run/specd/specd.sock", percent-encoded where a URI needs it; gRPC takes it as a listening
// address and as a target. `path` is absolute.
std::string socket_uri(const std::string& path);

// The exclusive right to a socket path. Locks PATH.lock, removes the socket of a dead daemon, and
// removes our own at the end. PATH.lock stays: without it two daemons could lock two files.
class SocketClaim {
 public:
  // kFailedPrecondition when another daemon holds it (naming its process id) or when PATH is not a
  // socket.
  static Result<SocketClaim> take(const std::string& path);
  SocketClaim(SocketClaim&& other) noexcept;
  SocketClaim& operator=(SocketClaim&&) = delete;
  ~SocketClaim();
  // Removes the socket if it still belongs to this user. Keeps the lock.
  void remove_socket();

 private:
  SocketClaim(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
};

}  // namespace specd::host
