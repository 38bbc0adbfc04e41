#include "host/base/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "host/base/parent_only.h"

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

Status refused(const std::string& what) { return Status(Code::kFailedPrecondition, what); }

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// A connection to the socket, or -1 with errno. Never waits.
int connect_to(const std::string& path) {
  sockaddr_un address{};
  if (path.size() > kSocketPathMax) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Whether this user, or root, owns it and nobody else may write to it.
bool is_kept_by(uid_t user, const std::string& folder) {
  struct stat info {};
  return stat(folder.c_str(), &info) == 0 && (info.st_uid == user || info.st_uid == 0) &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Whether only root, or the user of this process, can have given the folder to `user`, who alone writes to it.
// /tmp/x is nobody's: anyone could have made it.
bool is_folder_of(uid_t user, const std::string& folder) {
  std::error_code failure;
  std::filesystem::path each = std::filesystem::canonical(folder, failure);
  if (failure || !is_kept_by(user, each.string())) return false;
  while (each.has_relative_path()) {
    each = each.parent_path();
    if (!is_kept_by(geteuid(), each.string())) return false;
  }
  return true;
}

Status check_folder(const std::string& path) {
  const std::string folder = folder_of(path);
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return refused("cannot use " + folder + ": " + reason());
  if (info.st_uid != 0 && info.st_uid != geteuid())
    return refused(folder + " belongs to another user (id " + std::to_string(info.st_uid) +
                   "), who could replace the socket; chown it, or set another `listen`");
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (others_write && (info.st_mode & S_ISVTX) == 0)
    return refused("other users may write to " + folder +
                   " and could replace the socket; chmod go-w it, or set another `listen`");
  return Status();
}

// What another user left at a path that nobody told of may be in the way on purpose: in /tmp, anyone
// may write.
Status of_another_user(const std::string& path, uid_t user) {
  return refused(path + " belongs to another user (id " + std::to_string(user) +
                 "); remove it or set another `listen`, which without a configuration is "
                 "$SPECD_SOCKET");
}

// `lock` is open.
Status check_lock(int lock, const std::string& path) {
  struct stat info {};
  if (fstat(lock, &info) != 0) return refused("cannot use " + path + ": " + reason());
  if (!S_ISREG(info.st_mode))
    return refused(path + " exists and is not a plain file; remove it or set another `listen`");
  if (info.st_uid != geteuid()) return of_another_user(path, info.st_uid);
  return Status();
}

// We hold the lock, so no specd serves this socket; another program may.
Status remove_dead_socket(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return Status();
  if (!S_ISSOCK(info.st_mode))
    return refused(path + " exists and is not a socket; remove it or set another `listen`");
  if (geteuid() != 0 && info.st_uid != geteuid()) return of_another_user(path, info.st_uid);
  const int fd = connect_to(path);
  if (fd >= 0) close(fd);
  if (fd >= 0 || errno != ECONNREFUSED)
    return refused("another program serves " + path + "; stop it or set another `listen`");
  if (unlink(path.c_str()) != 0) return refused("cannot remove the old " + path + ": " + reason());
  return Status();
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

std::string default_socket() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  std::error_code unused;
  if (const std::string socket = variable("SPECD_SOCKET"); !socket.empty())
    return std::filesystem::absolute(socket, unused).string();
  for (const char* name : {"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"}) {
    const std::string folders = variable(name), first = folders.substr(0, folders.find(':'));
    if (first.starts_with('/')) return first + "/specd.sock";
  }
  return "/tmp/specd-" + std::to_string(geteuid()) + ".sock";
}

Status check_server_user(const std::string& path) {
  const int fd = connect_to(path);
  if (fd < 0) return Status();
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool is_known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  close(fd);
  const uid_t self = geteuid();
  if (is_known && (peer.uid == self || peer.uid == 0)) return Status();
  if (is_known && is_folder_of(peer.uid, folder_of(path))) return Status();
  return refused("the process that serves " + path + " belongs to another user (id " +
                 std::to_string(peer.uid) +
                 "); prompts are not sent to it; name the socket of your daemon with --socket or "
                 "$SPECD_SOCKET");
}

Result<SocketClaim> SocketClaim::take(const std::string& path) {
  SPECD_OK_OR_RETURN(check_folder(path));
  const std::string lock_path = path + ".lock";
  // O_NONBLOCK: the place may hold a FIFO.
  const int lock =
      open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (lock < 0 && errno == ELOOP)
    return refused(lock_path + " is a symbolic link; remove it or set another `listen`");
  if (lock < 0) {
    const int error = errno;
    struct stat info {};
    if (error == EACCES && lstat(lock_path.c_str(), &info) == 0 && info.st_uid != geteuid())
      return of_another_user(lock_path, info.st_uid);
    return refused("cannot open " + lock_path + ": " + std::strerror(error));
  }
  if (Status status = check_lock(lock, lock_path); !status.ok()) {
    close(lock);
    return status;
  }
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const Status status =
        refused(errno == EWOULDBLOCK ? "another specd (process " + holder_of(lock) + ") serves " +
                                           path + "; stop it or set another `listen`"
                                     : "cannot lock " + lock_path + ": " + reason());
    close(lock);
    return status;
  }
  keep_from_children(lock);
  SocketClaim claim("", lock);  // what is there may not be ours to remove
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock, 0) != 0 ||
      pwrite(lock, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return refused("cannot write " + lock_path + ": " + reason());
  SPECD_OK_OR_RETURN(remove_dead_socket(path));
  claim.path_ = path;
  return claim;
}

SocketClaim::SocketClaim(SocketClaim&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

SocketClaim::~SocketClaim() {
  if (lock_ < 0) return;
  remove_socket();
  forget_descriptor(lock_);
  close(lock_);
}

void SocketClaim::remove_socket() {
  struct stat info {};
  struct stat locked {};
  if (path_.empty() || fstat(lock_, &locked) != 0 || lstat((path_ + ".lock").c_str(), &info) != 0 ||
      info.st_dev != locked.st_dev || info.st_ino != locked.st_ino)
    return;
  if (lstat(path_.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_uid == geteuid())
    unlink(path_.c_str());
}

}  // namespace specd::host
