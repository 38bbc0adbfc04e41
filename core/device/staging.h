// Columns of numbers that pass between host and device: each is a piece of pinned host memory and
// a piece of device memory. The host fills a column and uploads it; download() brings results
// back. On the CPU both pieces are the same memory and nothing is copied.
//
// Columns lie in blocks. A column that finds no room opens another block, so that nobody has to
// know the sum of bytes beforehand; clear() merges the blocks into one that would have been large
// enough. The same columns added in the same order lie at the same addresses as long as clear()
// returns false, so that a captured graph finds them again.
//
// One user, one stream. A column may be changed or forgotten only when the stream has passed it.
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
  // One block of `bytes`; kExhausted naming `what`.
  static Result<Staging> create(Device& device, uint64_t bytes, const std::string& what);

  // A column of n elements. Its content is whatever was there.
  // Without memory for another block the column still has room on the host, and status() says so.
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
  // kExhausted from the moment a column found no memory until clear(). Requires that nothing is
  // submitted then: such a column has no device memory.
  const Status& status() const { return status_; }

  // Sends what was added since the last upload().
  void upload();
  // Sends everything again, whatever was sent before: for work that is captured, then repeated.
  void upload_all();
  template <typename T>
  void download(const Column<T>& column) {
    if (column.host != column.device) device_->copy_out(column.host, column.device, column.bytes());
  }
  // Forgets all columns. Requires that the stream has passed them. True when the next columns lie
  // elsewhere, so that work captured with the old addresses is void.
  bool clear();

  // Bytes that a column takes.
  template <typename T>
  static constexpr uint64_t bytes_of(size_t n) {
    return (n * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Left in the block that is being filled: what fits here opens no other block.
  uint64_t room() const {
    return blocks_.empty() ? 0 : blocks_.back().capacity - blocks_.back().used;
  }
  // Taken by all columns; equal numbers of equal columns take equal bytes.
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
  std::vector<Block> blocks_;                      // the last one is being filled
  std::vector<std::unique_ptr<char[]>> stranded_;  // columns without device memory
  Status status_;
};

}  // namespace specd
