// A connection as a stream of bytes that never blocks.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "core/base/file_descriptor.h"

namespace specd::host {

class Stream {
 public:
  // A connected stream socket that does not block.
  explicit Stream(FileDescriptor socket);
  virtual ~Stream();  // ends the connection, even where a child process still holds its descriptor
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int descriptor() const { return socket_.get(); }

  // As recv() and send() with MSG_DONTWAIT: -1 and EAGAIN when they would block.
  virtual ssize_t receive(char* to, size_t n);
  virtual ssize_t send(const char* from, size_t n);
  // Tells the other side that nothing more is sent.
  virtual void finish();
  // After finish(), until it returns 0: then the connection can be closed without loss. Over TCP, what the other
  // side sends meanwhile has to be read, or closing would drop what it has not taken yet. Else as receive().
  virtual ssize_t linger();

 private:
  FileDescriptor socket_;
  const bool is_tcp_;
};

}  // namespace specd::host
