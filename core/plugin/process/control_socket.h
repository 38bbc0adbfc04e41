// Messages between the daemon and the process of a drafter, outside of steps: JSON texts behind their length, with
// at most one file descriptor. The other end may be hostile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

class ControlSocket {
 public:
  struct Message {
    Json json;
    FileDescriptor descriptor;
  };

  // `bytes_max`: of a message that may come.
  ControlSocket(FileDescriptor fd, uint32_t bytes_max)
      : fd_(std::move(fd)), bytes_max_(bytes_max) {}
  // Two ends. The first is closed on exec.
  static Result<std::pair<FileDescriptor, FileDescriptor>> pair();

  int fd() const { return fd_.get(); }
  // `descriptor`: goes along; -1 = none. kDeadlineExceeded when the other end does not take it by then,
  // kUnavailable when it is closed. After an error nothing more can be sent.
  Status send(const Json& message, uint64_t until_ns, int descriptor = -1);
  // The next message that has come whole, or nothing. Never waits. kUnavailable when the other end is closed,
  // kDataLoss when it has sent what is no message; then nothing more can be read. Without `takes_descriptor`
  // none is received.
  Result<std::optional<Message>> take(bool takes_descriptor = false);

 private:
  FileDescriptor fd_;
  uint32_t bytes_max_;
  std::string read_;  // what has come and is not taken yet
  FileDescriptor descriptor_;
};

}  // namespace specd
