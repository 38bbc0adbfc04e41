#include "host/rpc/listen_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace specd::host {
namespace {

constexpr int kTypes = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
// A machine that is gone is noticed after 90 s, whether bytes are under way or not.
constexpr int kIdleSeconds = 60, kProbeSeconds = 10, kProbes = 3, kUnacknowledgedMs = 90'000;

Status cannot_listen(const std::string& what, const std::string& name) {
  return {Code::kFailedPrecondition,
          "cannot listen on " + name + ": " + what + ": " + std::strerror(errno)};
}

}  // namespace

Result<ListenSocket> ListenSocket::at_path(const std::string& path, bool is_open) {
  ListenSocket made;
  made.name_ = path;
  made.has_path_ = true;
  made.descriptor_ = FileDescriptor(socket(AF_UNIX, kTypes, 0));
  if (made.get() < 0) return cannot_listen("no descriptor", path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  // The socket must not be open to others before it is meant to be, not even between bind and chmod.
  const mode_t old_mask = umask(0177);
  const int bound = bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  umask(old_mask);
  if (bound != 0) return cannot_listen("bind", path);
  if (chmod(path.c_str(), is_open ? 0666 : 0600) != 0) return cannot_listen("chmod", path);
  if (listen(made.get(), SOMAXCONN) != 0) return cannot_listen("listen", path);
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return cannot_listen("stat", path);
  made.device_ = file.st_dev;
  made.inode_ = file.st_ino;
  return made;
}

Result<ListenSocket> ListenSocket::at_address(const std::string& address, uint16_t port) {
  const bool is_v6 = address.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + address + "]" : address;
  ListenSocket made;
  made.name_ = host + ":" + std::to_string(port);
  made.descriptor_ = FileDescriptor(socket(is_v6 ? AF_INET6 : AF_INET, kTypes, 0));
  if (made.get() < 0) return cannot_listen("no descriptor", made.name_);
  // Of connections that ended a moment ago the port is free at once.
  const int one = 1;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(port);
  if (inet_pton(is_v6 ? AF_INET6 : AF_INET, address.c_str(),
                is_v6 ? static_cast<void*>(&v6.sin6_addr) : &v4.sin_addr) != 1)
    return Status(Code::kInvalidArgument, "expected an IP address, found " + address);
  auto* const bound = is_v6 ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
  socklen_t size = is_v6 ? sizeof(v6) : sizeof(v4);
  if (bind(made.get(), bound, size) != 0) return cannot_listen("bind", made.name_);
  if (listen(made.get(), SOMAXCONN) != 0) return cannot_listen("listen", made.name_);
  if (getsockname(made.get(), bound, &size) != 0) return cannot_listen("getsockname", made.name_);
  made.name_ = host + ":" + std::to_string(ntohs(is_v6 ? v6.sin6_port : v4.sin_port));
  return made;
}

Status ListenSocket::status() const {
  struct stat now {};
  if (!has_path_ ||
      (stat(name_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_))
    return Status();
  return {Code::kUnavailable,
          "the socket " + name_ + " was removed or replaced; restart the daemon"};
}

FileDescriptor ListenSocket::accept() const {
  FileDescriptor client(accept4(get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client.get() < 0 || has_path_) return client;
  const auto set = [&client](int level, int option, int value) {
    (void)setsockopt(client.get(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
  return client;
}

}  // namespace specd::host
