// A socket that accepts connections: at a path, or at an address of TCP.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"

namespace specd::host {

class ListenSocket {
 public:
  // Only the owner of the socket may connect at all, unless `is_open`.
  static Result<ListenSocket> at_path(const std::string& path, bool is_open);
  // A literal of IPv4 or IPv6; port 0 = one that is free.
  static Result<ListenSocket> at_address(const std::string& address, uint16_t port);

  int get() const { return descriptor_.get(); }
  // The path, or "127.0.0.1:8443" with the port that was taken.
  const std::string& name() const { return name_; }
  // [any] Not ok when the path leads elsewhere by now.
  Status status() const;
  // A new connection, which does not block; -1 and errno as accept4(). Those of TCP end when the client's
  // machine is gone, or takes nothing for 90 s.
  FileDescriptor accept() const;
  void close() { const FileDescriptor closed = std::move(descriptor_); }

 private:
  FileDescriptor descriptor_{-1};
  std::string name_;
  bool has_path_ = false;
  dev_t device_ = 0;  // of the file at the path
  ino_t inode_ = 0;
};

}  // namespace specd::host
