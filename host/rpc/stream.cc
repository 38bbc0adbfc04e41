#include "host/rpc/stream.h"

#include <sys/socket.h>

#include <array>
#include <utility>

#include "host/base/parent_only.h"

namespace specd::host {

namespace {

bool is_of_tcp(int socket) {
  int domain = AF_UNIX;
  socklen_t size = sizeof(domain);
  getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain != AF_UNIX;
}

}  // namespace

Stream::Stream(FileDescriptor socket)
    : socket_(std::move(socket)), is_tcp_(is_of_tcp(socket_.get())) {
  keep_from_children(descriptor());
}

Stream::~Stream() {
  forget_descriptor(descriptor());
  shutdown(descriptor(), SHUT_RDWR);
}

ssize_t Stream::receive(char* to, size_t n) { return recv(descriptor(), to, n, MSG_DONTWAIT); }

ssize_t Stream::send(const char* from, size_t n) {
  return ::send(descriptor(), from, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Stream::finish() { shutdown(descriptor(), SHUT_WR); }

ssize_t Stream::linger() {
  if (!is_tcp_) return 0;
  std::array<char, size_t{64} << 10> unused;
  return Stream::receive(unused.data(), unused.size());
}

}  // namespace specd::host
