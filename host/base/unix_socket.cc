#include "host/base/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace specd::host {
namespace {

std::string reason() { return std::strerror(errno); }

std::string holder_of(int lock) {
  char text[32] = {};
  const ssize_t size = pread(lock, text, sizeof(text) - 1, 0);
  std::string pid(text, size > 0 ? static_cast<size_t>(size) : 0);
  pid.erase(pid.find_last_not_of('\n') + 1);
  return pid.empty() ? "unknown" : pid;
}

}  // namespace

std::string socket_uri(const std::string& path) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string uri = "unix:";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    if (letter || (byte >= '0' && byte <= '9') || std::strchr("/-._~", c) != nullptr) {
      uri += c;
    } else {
      uri += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return uri;
}

Result<SocketClaim> SocketClaim::take(const std::string& path) {
  const std::string lock_path = path + ".lock";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock < 0)
    return Status(Code::kFailedPrecondition, "cannot open " + lock_path + ": " + reason());
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const Status status(Code::kFailedPrecondition,
                        errno == EWOULDBLOCK
                            ? "another specd (process " + holder_of(lock) + ") serves " + path +
                                  "; stop it or set another `listen`"
                            : "cannot lock " + lock_path + ": " + reason());
    close(lock);
    return status;
  }
  SocketClaim claim(path, lock);
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock, 0) != 0 ||
      pwrite(lock, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return Status(Code::kFailedPrecondition, "cannot write " + lock_path + ": " + reason());

  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      claim.path_.clear();  // not ours to remove
      return Status(Code::kFailedPrecondition,
                    path + " exists and is not a socket; remove it or set another `listen`");
    }
    // We hold the lock, so the daemon that made this socket has ended.
    if (unlink(path.c_str()) != 0)
      return Status(Code::kFailedPrecondition, "cannot remove the old " + path + ": " + reason());
  }
  return claim;
}

SocketClaim::SocketClaim(SocketClaim&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

SocketClaim::~SocketClaim() {
  if (lock_ < 0) return;
  remove_socket();
  close(lock_);
}

void SocketClaim::remove_socket() {
  struct stat info {};
  if (!path_.empty() && lstat(path_.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) &&
      info.st_uid == geteuid())
    unlink(path_.c_str());
}

}  // namespace specd::host
