// The place where the daemon listens: path rules, and the claim that makes it the only one there.
#pragma once

#include <cstddef>
#include <string>

#include "core/engine.h"

namespace specd::host {

constexpr size_t kSocketPathMax = 107;  // sockaddr_un, less its final zero

// "unix:/run/specd/specd.sock", with what a URI cannot carry percent-encoded: what gRPC takes for a
// listening address and for a target. `path` is absolute.
std::string socket_uri(const std::string& path);

// Exclusive right to a socket path: holds a lock on PATH.lock (which stays, so that two starts
// cannot lock two different files), removes a socket that a dead daemon left, and removes ours at
// the end.
class SocketClaim {
 public:
  // kFailedPrecondition when another daemon holds it (naming its process id) or when PATH is not a
  // socket.
  static Result<SocketClaim> take(const std::string& path);
  SocketClaim(SocketClaim&& other) noexcept;
  SocketClaim& operator=(SocketClaim&&) = delete;
  ~SocketClaim();
  // Removes the socket, if what is there now is a socket of this user. The lock stays ours.
  void remove_socket();

 private:
  SocketClaim(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
};

}  // namespace specd::host
