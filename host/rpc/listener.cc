#include "host/rpc/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "host/base/parent_only.h"

namespace specd::host {
namespace {

constexpr int kRetryMs = 100;
constexpr int kFull = -1;

Status refused(const std::string& what, const std::string& path) {
  return Status(Code::kFailedPrecondition,
                "cannot listen on " + path + ": " + what + ": " + std::strerror(errno));
}

ino_t inode_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start(const std::string& path, size_t connections_max,
                                                  std::function<void(int)> take) {
  std::unique_ptr<Listener> made(new Listener);
  made->connections_max_ = connections_max;
  made->take_ = std::move(take);
  made->socket_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  made->stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (made->socket_.get() < 0 || made->stop_.get() < 0) return refused("no descriptor", path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  // The socket must never be open to others, not even between bind and chmod.
  const mode_t old_mask = umask(0177);
  const int bound =
      bind(made->socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  umask(old_mask);
  if (bound != 0) return refused("bind", path);
  if (chmod(path.c_str(), 0600) != 0) return refused("chmod", path);
  if (listen(made->socket_.get(), SOMAXCONN) != 0) return refused("listen", path);
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return refused("stat", path);
  made->path_ = path;
  made->device_ = file.st_dev;
  made->inode_ = file.st_ino;
  keep_from_children(made->socket_.get());
  made->thread_ = start_thread("specd-accept", [self = made.get()] { self->run(); });
  return made;
}

Listener::~Listener() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
  forget_descriptor(socket_.get());
}

Status Listener::status() const {
  struct stat now {};
  if (stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_)
    return Status(Code::kUnavailable,
                  "the socket " + path_ + " was removed or replaced; restart the daemon");
  const int problem = problem_;
  return problem == 0 ? Status() : Status(Code::kUnavailable, problem_text(problem));
}

std::string Listener::problem_text(int problem) const {
  if (problem == kFull)
    return std::to_string(connections_max_) + " clients are connected, as many as may";
  return std::string("connections cannot be accepted: ") + std::strerror(problem);
}

void Listener::run() {
  while (true) {
    // While descriptors are short the socket stays readable: look at it now and then only.
    const bool is_short = problem_ > 0;
    pollfd events[] = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                       {.fd = is_short ? -1 : socket_.get(), .events = POLLIN, .revents = 0}};
    const int n = poll(events, 2, problem_ == 0 ? -1 : kRetryMs);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || events[0].revents != 0) return;
    if (is_short || events[1].revents != 0) {
      accept_one();
    } else if (problem_ == kFull && has_place()) {
      problem_ = 0;
    }
  }
}

void Listener::accept_one() {
  FileDescriptor accepted(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (accepted.get() < 0) {
    const bool is_shortage =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    const int problem = is_shortage ? errno : 0;  // else that connection is gone already
    if (problem_.exchange(problem) == 0 && problem != 0)
      log(LogLevel::kWarn,
          problem_text(problem) + "; trying again (is the limit of descriptors too low?)");
    return;
  }
  if (!has_place()) {
    if (problem_.exchange(kFull) != kFull)
      log(LogLevel::kWarn, problem_text(kFull) + "; more are turned away");
    return;
  }
  problem_ = 0;
  const int fd = accepted.release();
  connections_.push_back({fd, inode_of(fd)});
  take_(fd);
}

bool Listener::has_place() {
  if (connections_.size() < connections_max_) return true;
  std::erase_if(connections_,
                [](const Connection& each) { return inode_of(each.fd) != each.inode; });
  return connections_.size() < connections_max_;
}

}  // namespace specd::host
