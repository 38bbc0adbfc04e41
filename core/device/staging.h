// Columns of numbers that pass between host and device: each is a piece of pinned host memory and
// one of device memory. Filled on the host, uploaded block by block; results come back by
// download(). On the CPU both pieces are the same and nothing is copied.
//
// The same columns added in the same order lie at the same addresses, so that a captured graph
// finds them again. One user, one stream; what was added may be changed or forgotten only when the
// stream has passed it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/check.h"
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
  Staging() = default;
  static Result<Staging> create(Device& device, uint64_t bytes, const std::string& what);

  // Makes room for `bytes` beside nothing else. REQUIRES that the stream has passed all columns,
  // which are forgotten; what was captured with them is void. True when addresses have changed.
  Result<bool> reserve(uint64_t bytes);

  // Bytes that a column takes.
  template <typename T>
  static constexpr uint64_t bytes_of(size_t n) {
    return (n * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  uint64_t room() const { return capacity_ - used_; }
  uint64_t used() const { return used_; }
  uint64_t capacity() const { return capacity_; }

  // REQUIRES room. The content is whatever was there.
  template <typename T>
  Column<T> add(size_t n) {
    const uint64_t bytes = bytes_of<T>(n);
    SPECD_CHECK(bytes <= room(), "staging has no room for " + std::to_string(bytes) + " bytes");
    Column<T> column{reinterpret_cast<T*>(host() + used_),
                     reinterpret_cast<T*>(device_memory() + used_), n};
    used_ += bytes;
    return column;
  }
  template <typename T>
  Column<T> add(const std::vector<T>& values) {
    Column<T> column = add<T>(values.size());
    if (!values.empty()) std::memcpy(column.host, values.data(), column.bytes());
    return column;
  }
  // Sends what was added since the last upload().
  void upload();
  // Sends the first `bytes` of all, whatever was sent before.
  void upload_first(uint64_t bytes);
  template <typename T>
  void download(const Column<T>& column) {
    if (column.host != column.device) device_->copy_out(column.host, column.device, column.bytes());
  }
  // Forgets all columns. REQUIRES that the stream has passed them.
  void clear() { used_ = uploaded_ = 0; }

 private:
  static constexpr uint64_t kAlignment = 64;
  char* host() const { return static_cast<char*>(host_.data()); }
  char* device_memory() const {
    return device_->is_host() ? host() : static_cast<char*>(memory_.data());
  }

  Device* device_ = nullptr;
  std::string what_;
  Buffer host_, memory_;
  uint64_t capacity_ = 0, used_ = 0, uploaded_ = 0;
};

}  // namespace specd
