// The door of the gRPC server: accepts connections on a Unix socket, a bounded number of them.
//
// gRPC's own listener has no bound, and stops accepting for good once the process runs out of
// descriptors (grpc 1.51, src/core/lib/iomgr/tcp_server_posix.cc).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"

namespace specd::host {

class Listener {
 public:
  // Listens on `path`, open to its owner only, and calls `take` with the descriptor of each new
  // connection, which it then owns, on the thread of the listener. One that would be more than
  // `connections_max` is closed at once.
  static Result<std::unique_ptr<Listener>> start(const std::string& path, size_t connections_max,
                                                 std::function<void(int)> take);
  ~Listener();  // `take` is not called any more
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // [any] Not ok while new connections cannot be accepted, or the path leads elsewhere.
  Status status() const;

 private:
  // A connection that was handed over. gRPC closes its descriptor without telling, and the number
  // may then belong to something else, which has another inode.
  struct Connection {
    int fd;
    ino_t inode;
  };

  Listener() = default;
  void run();
  void accept_one();
  bool has_place();
  std::string problem_text(int problem) const;

  FileDescriptor socket_{-1}, stop_{-1};
  std::string path_;
  dev_t device_ = 0;  // of the file at the path
  ino_t inode_ = 0;
  size_t connections_max_ = 0;
  std::function<void(int)> take_;
  std::vector<Connection> connections_;
  std::atomic<int> problem_{0};  // errno of accept4(), or kFull
  std::thread thread_;
};

}  // namespace specd::host
