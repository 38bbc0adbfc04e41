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

// Where a daemon serves that no configuration tells, and where specctl looks first: $SPECD_SOCKET,
// else specd.sock in $RUNTIME_DIRECTORY (systemd) or $XDG_RUNTIME_DIR, else /tmp/specd-UID.sock.
// An absolute path.
std::string default_socket();

// kFailedPrecondition when the process that serves `path` belongs neither to this user, nor to root, nor to the
// owner of the folder, where only root or this user can have made that: nobody else may write to any folder above.
// ok when nobody serves it: connecting says so.
Status check_server_user(const std::string& path);

// The exclusive right to a socket path. Locks PATH.lock, removes the socket of a dead daemon, and
// removes our own at the end. PATH.lock stays: without it two daemons could lock two files.
class SocketClaim {
 public:
  // kFailedPrecondition when another daemon holds it (naming its process id), when PATH is not a
  // socket or another program serves it, when its folder belongs to another user than root or
  // others may write to it, who could replace the socket, or when PATH.lock is not a plain file of
  // this user.
  static Result<SocketClaim> take(const std::string& path);
  SocketClaim(SocketClaim&& other) noexcept;
  SocketClaim& operator=(SocketClaim&&) = delete;
  ~SocketClaim();
  // Removes the socket if it still belongs to this user, and PATH.lock is still the file that we
  // locked: otherwise the socket may be that of another daemon. Keeps the lock.
  void remove_socket();

 private:
  SocketClaim(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
};

}  // namespace specd::host
