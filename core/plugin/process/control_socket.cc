#include "core/plugin/process/control_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/clock.h"

namespace specd {
namespace {

Status is_closed() { return Status(Code::kUnavailable, "the other end is closed"); }

// Room for one descriptor.
struct Ancillary {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

}  // namespace

Result<std::pair<FileDescriptor, FileDescriptor>> ControlSocket::pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Status(Code::kExhausted, std::string("cannot make a socket pair: ") + strerror(errno));
  return std::pair(FileDescriptor(ends[0]), FileDescriptor(ends[1]));
}

Status ControlSocket::send(const Json& message, uint64_t until_ns, int descriptor) {
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto size = static_cast<uint32_t>(text.size());
  if (text.size() > UINT32_MAX) return Status(Code::kExhausted, "a message is too long");
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  bytes += text;
  for (size_t sent = 0; sent < bytes.size();) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    Ancillary along;
    if (descriptor >= 0 && sent == 0) {
      header.msg_control = along.bytes.data();
      header.msg_controllen = along.bytes.size();
      cmsghdr* const first = CMSG_FIRSTHDR(&header);
      first->cmsg_level = SOL_SOCKET;
      first->cmsg_type = SCM_RIGHTS;
      first->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(first), &descriptor, sizeof(int));
    }
    const ssize_t n = sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return is_closed();
    const uint64_t now = now_ns();
    if (now >= until_ns)
      return Status(Code::kDeadlineExceeded, "the other end does not take a message");
    pollfd room{fd_.get(), POLLOUT, 0};
    (void)poll(&room, 1,
               static_cast<int>(std::min<uint64_t>((until_ns - now) / 1'000'000 + 1, 1000)));
  }
  return Status();
}

Result<std::optional<ControlSocket::Message>> ControlSocket::take(bool takes_descriptor) {
  while (true) {
    uint32_t size = 0;
    if (read_.size() >= sizeof(size)) {
      std::memcpy(&size, read_.data(), sizeof(size));
      if (size > bytes_max_)
        return Status(Code::kDataLoss,
                      "a message says that it has " + std::to_string(size) + " bytes");
      if (read_.size() >= sizeof(size) + size) {
        SPECD_TRY(Json json, parse_json(std::string_view(read_).substr(sizeof(size), size),
                                        "message of the control socket"));
        read_.erase(0, sizeof(size) + size);
        return std::optional(Message{std::move(json), std::move(descriptor_)});
      }
    }
    std::array<char, size_t{16} << 10> bytes;
    iovec part{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    Ancillary along;
    if (takes_descriptor) {
      header.msg_control = along.bytes.data();
      header.msg_controllen = along.bytes.size();
    }
    const ssize_t n = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return std::optional<Message>();
    if (n <= 0) return is_closed();
    for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr;
         each = CMSG_NXTHDR(&header, each)) {
      if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each), sizeof(fd));
      descriptor_ = FileDescriptor(fd);
    }
    read_.append(bytes.data(), static_cast<size_t>(n));
  }
}

}  // namespace specd
