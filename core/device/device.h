// Where tensors live and ops run: memory, one stream, the table of ops. The CPU is a device whose
// stream runs at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "specd/kernels/cpu.h"
#include "specd/kernels/ops.h"

namespace specd {

// Owned device memory, zero-filled, aligned to 64 bytes or more. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, uint64_t bytes, void (*release)(void*, uint64_t))
      : data_(data), bytes_(bytes), release_(release) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void reset() {
    if (data_ != nullptr) release_(data_, bytes_);
    data_ = nullptr;
  }
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  void (*release_)(void*, uint64_t) = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  // kExhausted naming `what`, need and limit.
  virtual Result<Buffer> allocate(uint64_t bytes, const std::string& what) = 0;
  virtual const kernels::Ops& ops() const = 0;
  virtual kernels::Stream& stream() = 0;
};

class CpuDevice final : public Device {
 public:
  // isa: "" for the best, or a name of kernels::isa_name; threads: 0 = one per core.
  static Result<std::unique_ptr<CpuDevice>> create(const std::string& isa, int32_t threads);

  Result<Buffer> allocate(uint64_t bytes, const std::string& what) override;
  const kernels::Ops& ops() const override { return ops_; }
  kernels::CpuStream& stream() override { return stream_; }
  int32_t threads() const { return pool_.n_threads(); }

 private:
  CpuDevice(const kernels::Ops& ops, int32_t threads) : ops_(ops), pool_(threads), stream_(pool_) {}
  const kernels::Ops& ops_;
  kernels::WorkerPool pool_;
  kernels::CpuStream stream_;
};

}  // namespace specd
