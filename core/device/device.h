// Where tensors live and ops run: memory, one stream, the table of ops, copies, graphs.
//
// On the CPU, device memory is host memory and submitted work completes immediately. On any other
// device, do not read the result of an op, and do not change the input of a pending copy or op,
// before synchronize() has returned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/device/host_memory.h"
#include "specd/kernels/cpu.h"
#include "specd/kernels/ops.h"

namespace specd {

// Owned memory, aligned to at least 64 bytes. Move-only; must not outlive its device.
class Buffer {
 public:
  using Release = std::function<void(void*, uint64_t)>;
  Buffer() = default;
  Buffer(void* data, uint64_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
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
  Release release_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;         // "cpu", "cuda:0"
  virtual std::string description() const = 0;  // "cpu-avx2", "NVIDIA H200"
  // True when tensors are in host memory and an op is complete when it returns: no copies,
  // no waiting.
  virtual bool is_host() const = 0;
  virtual int32_t index() const = 0;
  virtual uint64_t total_bytes() const = 0;    // of memory
  virtual uint64_t scratch_bytes() const = 0;  // of it, for ops, since it was opened

  // Returns zero-filled memory. Fails with kExhausted, naming `what`, the need and the limit.
  virtual Result<Buffer> allocate(uint64_t bytes, const std::string& what) = 0;
  // Pinned host memory, for copies in stream order.
  virtual Result<Buffer> allocate_pinned(uint64_t bytes, const std::string& what) = 0;

  // Another stream of the same device, to load weights beside this one's work. It may use memory of
  // this one, whose matrices have the same layout. It must not outlive this.
  virtual Result<std::unique_ptr<Device>> open_beside() = 0;

  virtual const kernels::Ops& ops() const = 0;
  virtual kernels::Stream& stream() = 0;
  virtual void* native_stream() = 0;  // what plugins get: cudaStream_t, null on the CPU

  // Copies in stream order when `host` is pinned; otherwise complete on return.
  virtual void copy_in(void* device, const void* host, uint64_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, uint64_t bytes) = 0;
  // Waits for all submitted work. An error means that something has failed, now or earlier; the
  // device is then unusable.
  virtual Status synchronize() = 0;

  // Work submitted between these two calls is recorded as a graph instead of being run. launch()
  // submits it again, with the same addresses. Never available on the host.
  virtual Status begin_capture() = 0;
  virtual Result<int32_t> end_capture() = 0;
  virtual void launch(int32_t graph) = 0;
  virtual void release_graph(int32_t graph) = 0;  // only after synchronize()
};

// Processors on which this process may run.
int32_t usable_cores();

class CpuDevice final : public Device {
 public:
  // isa: "" for the best, or a name from kernels::isa_name. threads: 0 = one per core. bf16: use
  // the ops of kernels::cpu_bf16_ops().
  static Result<std::unique_ptr<CpuDevice>> create(const std::string& isa, int32_t threads,
                                                   bool bf16 = false);

  std::string name() const override { return "cpu"; }
  std::string description() const override { return ops_.name; }
  bool is_host() const override { return true; }
  int32_t index() const override { return 0; }
  uint64_t total_bytes() const override { return memory_.bytes; }
  uint64_t scratch_bytes() const override { return 0; }
  Result<Buffer> allocate(uint64_t bytes, const std::string& what) override;
  Result<Buffer> allocate_pinned(uint64_t bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  // With one thread, as open_for_thread().
  Result<std::unique_ptr<Device>> open_beside() override;
  // One with the same ops for work of the calling thread alone.
  std::unique_ptr<CpuDevice> open_for_thread() const;
  const kernels::Ops& ops() const override { return ops_; }
  kernels::CpuStream& stream() override { return stream_; }
  void* native_stream() override { return nullptr; }
  void copy_in(void* device, const void* host, uint64_t bytes) override;
  void copy_out(void* host, const void* device, uint64_t bytes) override;
  Status synchronize() override { return Status(); }
  Status begin_capture() override;
  Result<int32_t> end_capture() override;
  void launch(int32_t graph) override;
  void release_graph(int32_t graph) override;
  int32_t threads() const { return pool_.n_threads(); }

 private:
  CpuDevice(const kernels::Ops& ops, int32_t threads) : ops_(ops), pool_(threads), stream_(pool_) {}
  const kernels::Ops& ops_;
  const HostMemory memory_ = host_memory();
  kernels::WorkerPool pool_;
  kernels::CpuStream stream_;
};

}  // namespace specd
