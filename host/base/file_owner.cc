#include "host/base/file_owner.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/quote.h"

namespace specd::host {

Status check_file_owner(const std::string& path, bool is_secret) {
  constexpr size_t kPathBytesMax = 400;
  const std::string name = quote(path, kPathBytesMax);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Status();
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return Status(Code::kInvalidArgument, name + ": it belongs to user " +
                                              std::to_string(info.st_uid) +
                                              "; expected a file of the user of specd, or of root");
  const mode_t forbidden = S_IWGRP | S_IWOTH | (is_secret ? S_IROTH : 0);
  if ((info.st_mode & forbidden) == 0) return Status();
  return Status(Code::kInvalidArgument,
                name + (is_secret ? ": others may read or change it" : ": others may change it") +
                    "; take these rights away (chmod " + (is_secret ? "o-rw" : "o-w") + ",g-w " +
                    name + ")");
}

}  // namespace specd::host
