// A file of lines, each with a checksum, that one process writes. A line is on disk when append() returns,
// and a process that dies at any point leaves whole lines, and at most the beginning of one behind them.
//
//   16 hexadecimal digits of the text's SHA-256, a space, the text without line breaks, \n
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"

namespace specd {

// One owner.
class LineFile {
 public:
  struct Line {
    size_t number;  // from 1
    std::string text;
  };
  struct Content {
    std::vector<Line> lines;
    std::vector<size_t> bad;  // numbers of lines whose checksum is wrong
  };

  // Locks the folder, an absolute path of one that exists and that only root and the daemon's user can
  // change (core/plugin/bundle/trusted_file.h), and opens or makes the file in it. The beginning of a line at the end is
  // cut off, and that is logged. kFailedPrecondition when another process has the folder; other errors say
  // what failed. `content`: what is there.
  static Result<std::unique_ptr<LineFile>> open(const std::string& directory,
                                                const std::string& name, Content& content);

  // A text as a line of such a file.
  static std::string line_of(std::string_view text);
  // Needs no memory unless it fails. After an error the file is as it was, once the next append()
  // succeeds at the latest.
  Status append(const std::string& line);
  // Replaces all lines at once. The old file stays beside it as NAME.damaged if `keeps_old`, unless there is such
  // a file already, or the file system has no links.
  Status replace(const std::string& lines, bool keeps_old);

  uint64_t n_bytes() const { return n_bytes_; }
  const std::string& path() const { return path_; }

 private:
  LineFile() = default;
  Status failed(const char* what) const;  // by errno

  std::string path_;
  FileDescriptor folder_, file_;  // the lock is the folder's
  uint64_t n_bytes_ = 0;          // of whole lines
  bool has_rest_ = false;         // of a line that could not be written
};

}  // namespace specd
