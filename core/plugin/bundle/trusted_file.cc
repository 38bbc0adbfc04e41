#include "core/plugin/bundle/trusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/base/quote.h"
#include "core/base/sha256.h"

namespace specd {
namespace {

std::string octal(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof(text), "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

// Why `path` is not trusted, or empty. `on_the_way`: it is a directory above the wanted file.
std::string distrust(const struct stat& info, bool on_the_way, const std::string& path) {
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    return quote(path, 400) + " is owned by uid " + std::to_string(info.st_uid) +
           ", expected root or uid " + std::to_string(geteuid()) + "; fix: chown it";
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    if (on_the_way && (info.st_mode & S_ISVTX) != 0 && info.st_uid == 0) return std::string();
    return quote(path, 400) + " is writable by " +
           ((info.st_mode & S_IWOTH) != 0 ? "others" : "its group") + " (mode " +
           octal(info.st_mode) + "), so other users could replace the plugin; fix: chmod go-w";
  }
  return std::string();
}

Status open_error(const std::string& path, int error, bool is_link) {
  if (is_link) {
    char* real = realpath(path.c_str(), nullptr);
    const std::string hint = real == nullptr ? "a real path" : quote(real, 400);
    std::free(real);
    return Status(Code::kFailedPrecondition,
                  quote(path, 400) + " is a symbolic link, which is not followed; use " + hint);
  }
  if (error == ENOENT) return Status(Code::kNotFound, quote(path, 400) + " does not exist");
  if (error == ENOTDIR) {
    return Status(Code::kInvalidArgument, quote(path, 400) + " is not a directory");
  }
  return Status(Code::kFailedPrecondition,
                quote(path, 400) + " cannot be opened: " + std::strerror(error));
}

Status read_error(const std::string& path) {
  return Status(Code::kDataLoss, quote(path, 400) + ": read: " + std::strerror(errno));
}

Status too_long(const std::string& path, uint64_t bytes_max) {
  return Status(Code::kDataLoss,
                quote(path, 400) + " is longer than " + std::to_string(bytes_max) + " bytes");
}

Result<FileDescriptor> open_trusted(const std::string& path, bool want_directory) {
  if (path.empty() || path[0] != '/') {
    return Status(Code::kInvalidArgument, quote(path, 400) + ": expected an absolute path");
  }
  FileDescriptor at(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return open_error("/", errno, false);
  std::string walked;
  std::string_view rest(path);
  bool last = false;
  while (true) {
    // The part that was opened last, "/" at first.
    struct stat info;
    const std::string here = walked.empty() ? "/" : walked;
    if (fstat(at.get(), &info) != 0) return open_error(here, errno, false);
    const size_t start = rest.find_first_not_of('/');
    rest.remove_prefix(start == std::string_view::npos ? rest.size() : start);
    last = rest.empty();
    if (last && want_directory != S_ISDIR(info.st_mode)) {
      return Status(Code::kInvalidArgument, quote(here, 400) + " is not a " +
                                                (want_directory ? "directory" : "regular file"));
    }
    if (last && !want_directory && !S_ISREG(info.st_mode)) {
      return Status(Code::kInvalidArgument, quote(here, 400) + " is not a regular file");
    }
    if (std::string fault = distrust(info, !last, here); !fault.empty()) {
      return Status(Code::kFailedPrecondition, fault);
    }
    if (last) return at;

    const std::string part(rest.substr(0, rest.find('/')));
    rest.remove_prefix(part.size());
    if (part == "." || part == "..") {
      return Status(Code::kInvalidArgument, quote(path, 400) + ": '" + part + "' is not allowed");
    }
    walked += "/" + part;
    const bool more = rest.find_first_not_of('/') != std::string_view::npos;
    // O_NONBLOCK: opening a FIFO must not hang; it is refused by its type afterwards.
    const int flags =
        O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (more || want_directory ? O_DIRECTORY : 0);
    FileDescriptor next(openat(at.get(), part.c_str(), flags));
    if (next.get() < 0) {
      const int error = errno;
      struct stat link;
      const bool is_link =
          fstatat(at.get(), part.c_str(), &link, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(link.st_mode);
      return open_error(walked, error, is_link);
    }
    at = std::move(next);
  }
}

}  // namespace

Result<FileDescriptor> open_trusted_directory(const std::string& path) {
  return open_trusted(path, true);
}

Result<FileDescriptor> open_trusted_file(const std::string& path, uint64_t bytes_max) {
  SPECD_TRY(FileDescriptor file, open_trusted(path, false));
  SPECD_TRY(const uint64_t bytes, file_bytes(file, path));
  if (bytes > bytes_max) {
    return Status(Code::kDataLoss, quote(path, 400) + " has " + std::to_string(bytes) +
                                       " bytes, expected at most " + std::to_string(bytes_max));
  }
  return file;
}

Result<uint64_t> file_bytes(const FileDescriptor& file, const std::string& path) {
  struct stat info;
  if (fstat(file.get(), &info) != 0) return open_error(path, errno, false);
  return static_cast<uint64_t>(info.st_size);
}

Status check_hash(const FileDescriptor& file, uint64_t bytes_max, const std::string& path,
                  const std::string& expected,
                  const std::function<Status(std::span<const std::byte>)>& take) {
  Sha256 hash;
  std::vector<std::byte> buffer(256 * 1024);
  uint64_t total = 0;
  while (true) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_error(path);
    if (got == 0) break;
    total += static_cast<uint64_t>(got);
    if (total > bytes_max) return too_long(path, bytes_max);
    const std::span<const std::byte> piece(buffer.data(), static_cast<size_t>(got));
    hash.update(piece);
    if (take != nullptr) SPECD_OK_OR_RETURN(take(piece));
  }
  const std::string found = to_hex(hash.finish());
  if (found == expected) return Status();
  return Status(Code::kDataLoss, quote(path, 400) + ": hash mismatch: expected sha256:" + expected +
                                     " (plugin.json), found sha256:" + found +
                                     "; install the bundle again");
}

Result<std::string> read_all(const FileDescriptor& file, uint64_t bytes_max,
                             const std::string& path) {
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t got = read(file.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_error(path);
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > bytes_max) return too_long(path, bytes_max);
    text.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace specd
