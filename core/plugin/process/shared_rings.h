// The two rings of a drafter in another process: a file in memory that both have mapped. Its size is sealed, so that
// the other process cannot take the pages away.
#pragma once

#include <cstddef>
#include <memory>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"
#include "core/plugin/beside/ring.h"

namespace specd {

class SharedRings {
 public:
  // Capacities as RingWriter has them. kExhausted when there is no memory.
  static Result<std::unique_ptr<SharedRings>> make(size_t request_capacity, size_t reply_capacity);
  // Those behind `file`, of the other process.
  static Result<std::unique_ptr<SharedRings>> map(FileDescriptor file, size_t request_capacity,
                                                  size_t reply_capacity);
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  int file() const { return file_.get(); }
  void close_file() { file_ = FileDescriptor(); }  // the pages stay
  RingHeader& requests() const { return *reinterpret_cast<RingHeader*>(memory_); }
  RingHeader& replies() const {
    return *reinterpret_cast<RingHeader*>(memory_ + sizeof(RingHeader) + request_capacity);
  }

  const size_t request_capacity, reply_capacity;

 private:
  SharedRings(size_t requests, size_t replies)
      : request_capacity(requests), reply_capacity(replies) {}
  size_t bytes() const { return rings_bytes(request_capacity, reply_capacity); }
  Status map_file();

  FileDescriptor file_;
  std::byte* memory_ = nullptr;
};

}  // namespace specd
