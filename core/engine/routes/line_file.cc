#include "core/engine/routes/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/failpoint.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "core/plugin/bundle/trusted_file.h"

namespace specd {
namespace {

constexpr size_t kDigits = 16;
constexpr uint64_t kBytesMax = uint64_t{2} << 30;

std::string checksum(std::string_view text) { return to_hex(sha256(text)).substr(0, kDigits); }

// Returns the bytes of whole lines.
uint64_t read_lines(std::string_view all, LineFile::Content& content) {
  size_t begin = 0;
  for (size_t number = 1;; ++number) {
    const size_t end = all.find('\n', begin);
    if (end == std::string_view::npos) return begin;
    const std::string_view line = all.substr(begin, end - begin);
    begin = end + 1;
    if (line.size() > kDigits && line[kDigits] == ' ' &&
        line.substr(0, kDigits) == checksum(line.substr(kDigits + 1))) {
      content.lines.push_back({number, std::string(line.substr(kDigits + 1))});
    } else {
      content.bad.push_back(number);
    }
  }
}

// False with errno.
bool write_all(int file, std::string_view bytes, uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return true;
}

FileDescriptor open_in(int folder, const std::string& name, int flags) {
  return FileDescriptor(
      openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, S_IRUSR | S_IWUSR));
}

}  // namespace

Status LineFile::failed(const char* what) const {
  return Status(Code::kUnavailable,
                quote(path_, 400) + ": cannot " + what + ": " + std::strerror(errno));
}

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& directory,
                                                 const std::string& name, Content& content) {
  std::unique_ptr<LineFile> made(new LineFile);
  LineFile& self = *made;
  self.path_ = directory;
  SPECD_TRY(self.folder_, open_trusted_directory(directory));
  if (flock(self.folder_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return self.failed("lock the folder");
    return Status(Code::kFailedPrecondition,
                  quote(directory, 400) +
                      ": another process has this folder; each specd needs one of its own");
  }
  self.path_ = directory + "/" + name;
  self.file_ = open_in(self.folder_.get(), name, O_RDWR | O_CREAT);
  if (self.file_.get() < 0) return self.failed("open");
  SPECD_TRY(const std::string all, read_text_file(self.path_, kBytesMax));
  self.n_bytes_ = read_lines(all, content);
  if (self.n_bytes_ < all.size()) {
    log(LogLevel::kWarn, quote(self.path_, 400) + ": an unfinished line of " +
                             std::to_string(all.size() - self.n_bytes_) +
                             " bytes at the end is cut off");
    if (ftruncate(self.file_.get(), static_cast<off_t>(self.n_bytes_)) != 0)
      return self.failed("truncate");
  }
  // The file's name, too, must survive.
  if (fsync(self.file_.get()) != 0 || fsync(self.folder_.get()) != 0) return self.failed("sync");
  return made;
}

std::string LineFile::line_of(std::string_view text) {
  return checksum(text) + ' ' + std::string(text) + '\n';
}

Status LineFile::append(const std::string& line) {
  if (has_rest_ && ftruncate(file_.get(), static_cast<off_t>(n_bytes_)) != 0)
    return failed("truncate");
  has_rest_ = true;
  if (SPECD_FAILS(kJournalWrite, ENOSPC) || !write_all(file_.get(), line, n_bytes_) ||
      SPECD_FAILS(kJournalSync, EIO) || fdatasync(file_.get()) != 0) {
    Status status = failed("write");
    has_rest_ = SPECD_FAILS(kJournalTruncate, EIO) ||
                ftruncate(file_.get(), static_cast<off_t>(n_bytes_)) != 0;
    return status;
  }
  has_rest_ = false;
  n_bytes_ += line.size();
  return Status();
}

Status LineFile::replace(const std::string& lines, bool keeps_old) {
  const std::string name = path_.substr(path_.rfind('/') + 1);
  const std::string fresh = name + ".new", old = name + ".damaged";
  const int folder = folder_.get();
  FileDescriptor file = open_in(folder, fresh, O_RDWR | O_CREAT | O_TRUNC);
  if (file.get() < 0) return failed("make the new file beside it");
  const auto undo = [&](const char* what) {
    Status status = failed(what);
    (void)unlinkat(folder, fresh.c_str(), 0);
    return status;
  };
  if (SPECD_FAILS(kJournalReplace, ENOSPC) || !write_all(file.get(), lines, 0) ||
      fsync(file.get()) != 0) {
    return undo("write the new file beside it");
  }
  if (keeps_old && linkat(folder, name.c_str(), folder, old.c_str(), 0) != 0) {
    log(LogLevel::kWarn, quote(path_, 400) + ": no copy of it is kept: " + std::strerror(errno));
  }
  if (SPECD_FAILS(kJournalRename, EIO) ||
      renameat(folder, fresh.c_str(), folder, name.c_str()) != 0)
    return undo("replace");
  file_ = std::move(file);
  n_bytes_ = lines.size();
  has_rest_ = false;
  if (SPECD_FAILS(kJournalSyncFolder, EIO) || fsync(folder) != 0)
    return failed("sync the folder of");
  return Status();
}

}  // namespace specd
