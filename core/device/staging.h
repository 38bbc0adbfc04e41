// Columns of numbers passed between host and device. Each has a piece of pinned host memory and a
// piece of device memory. The host fills a column and uploads it; download() returns results. On
// the CPU both pieces are the same memory and nothing is copied.
//
// Columns are in blocks. A column that does not fit opens another block, so no caller needs to know
// the total size in advance; clear() merges the blocks into one large enough for all. The same
// columns added in the same order have the same addresses while clear() returns false, so a
// captured graph can be replayed.
//
// For one user and one stream. A column may be changed or dropped only after the stream has
// finished with it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"

namespace specd {

template <typename T>
struct Column {
  T* host = nullptr;
  T* device = nullptr;
  size_t n = 0;

  uint64_t bytes() const { return n * sizeof(T); }
};

class Staging {
 public:
  // Without a block; only clear() and room() may be called.
  Staging() = default;
  // Allocates one block of `bytes`; fails with kExhausted, naming `what`.
  static Result<Staging> create(Device& device, uint64_t bytes, const std::string& what);

  // Adds a column of n elements with undefined content. When there is no memory for another block,
  // the column still has host memory, and status() has the error.
  template <typename T>
  Column<T> add(size_t n) {
    const Place place = take(bytes_of<T>(n));
    return {reinterpret_cast<T*>(place.host), reinterpret_cast<T*>(place.device), n};
  }
  template <typename T>
  Column<T> add(const std::vector<T>& values) {
    Column<T> column = add<T>(values.size());
    if (!values.empty()) std::memcpy(column.host, values.data(), column.bytes());
    return column;
  }
  // kExhausted once a column got no memory, until clear(). REQUIRES that nothing is submitted in
  // that state, because such a column has no device memory.
  const Status& status() const { return status_; }

  // Copies everything added since the last upload() to the device.
  void upload();
  // Copies everything again, whatever was uploaded before: for work that is captured and
  // then repeated.
  void upload_all();
  template <typename T>
  void download(const Column<T>& column) {
    if (column.host != column.device) device_->copy_out(column.host, column.device, column.bytes());
  }
  // Drops all columns. REQUIRES that the stream has finished with them. Returns true when the next
  // columns have other addresses, which invalidates work captured with the old ones.
  bool clear();
  // Whether clear() will release memory.
  bool is_in_pieces() const { return blocks_.size() > 1; }

  // Bytes that one column occupies.
  template <typename T>
  static constexpr uint64_t bytes_of(size_t n) {
    return (n * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Room left in the current block, before another block is opened.
  uint64_t room() const {
    return blocks_.empty() ? 0 : blocks_.back().capacity - blocks_.back().used;
  }
  // Bytes of all blocks.
  uint64_t capacity() const;
  // Bytes used by all columns; equal numbers of equal columns use equal bytes.
  uint64_t used() const;

 private:
  static constexpr uint64_t kAlignment = 64;
  struct Block {
    Buffer host, memory;  // `memory` is empty on the CPU
    uint64_t capacity = 0, used = 0, uploaded = 0;
  };
  struct Place {
    char *host, *device;
  };
  static Result<Block> make_block(Device& device, uint64_t bytes, const std::string& what);
  Place take(uint64_t bytes);
  void send(Block& block, uint64_t from);

  Device* device_ = nullptr;
  std::string what_;
  std::vector<Block> blocks_;                      // the last one is the current one
  std::vector<std::unique_ptr<char[]>> stranded_;  // columns without device memory
  Status status_;
};

}  // namespace specd
