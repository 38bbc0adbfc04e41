#include "host/rpc/stream.h"

#include <sys/socket.h>

#include <utility>

#include "host/base/parent_only.h"

namespace specd::host {

Stream::Stream(FileDescriptor socket) : socket_(std::move(socket)) {
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

}  // namespace specd::host
