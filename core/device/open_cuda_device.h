// The Device of an open CUDA device. Only for files that open it or join it to others.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cuda_device.h"

namespace specd {

// Looks at what a stream depends on while somebody waits for it.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  // Not ok: the stream will not finish. `waited`: so far.
  virtual Status check(std::chrono::steady_clock::duration waited) = 0;
  // Makes it finish, whatever becomes of its work.
  virtual void abort() = 0;
};

class OpenCudaDevice final : public Device {
 public:
  OpenCudaDevice(const kernels::CudaLibrary& library, std::unique_ptr<kernels::CudaDevice> device,
                 bool is_fast)
      : library_(library), device_(std::move(device)), is_fast_(is_fast) {}

  std::string name() const override { return "cuda:" + std::to_string(index()); }
  std::string description() const override { return device_->info().name; }
  bool is_host() const override { return false; }
  int32_t index() const override { return device_->info().index; }
  uint64_t total_bytes() const override { return device_->info().total_bytes; }
  uint64_t scratch_bytes() const override { return device_->info().scratch_bytes; }

  Result<Buffer> allocate(uint64_t bytes, const std::string& what) override {
    kernels::CudaProblem problem;
    void* data = device_->allocate(bytes, problem);
    if (data == nullptr) return Status(Code::kExhausted, what + ": " + problem.text);
    return Buffer(data, bytes, [this](void* held, uint64_t) { device_->release(held); });
  }
  Result<Buffer> allocate_pinned(uint64_t bytes, const std::string& what) override {
    kernels::CudaProblem problem;
    void* data = device_->allocate_pinned(bytes, problem);
    if (data == nullptr) return Status(Code::kExhausted, what + ": " + problem.text);
    std::memset(data, 0, bytes);
    return Buffer(data, bytes, [this](void* held, uint64_t) { device_->release_pinned(held); });
  }
  Result<std::unique_ptr<Device>> open_beside() override {
    // For loading: scratch for pack() is enough.
    return open_cuda_device(index(), {.rows_max = 1,
                                      .width_max = 16,
                                      .positions_max = 16,
                                      .scratch_bytes = uint64_t{32} << 20,
                                      .fast = is_fast_});
  }
  const kernels::Ops& ops() const override { return device_->ops(); }
  kernels::Stream& stream() override { return device_->stream(); }
  void* native_stream() override { return device_->native_stream(); }
  void copy_in(void* device, const void* host, uint64_t bytes) override {
    if (bytes > 0) device_->copy_in(device, host, bytes);
  }
  void copy_out(void* host, const void* device, uint64_t bytes) override {
    if (bytes > 0) device_->copy_out(host, device, bytes);
  }
  Status synchronize() override {
    if (!watches_.empty()) wait_for_ranks();
    kernels::CudaProblem problem;
    if (!device_->synchronize(problem)) fail(problem);
    return failed_;
  }
  Status begin_capture() override {
    if (!watches_.empty()) wait_for_ranks();
    kernels::CudaProblem problem;
    if (!device_->begin_capture(problem)) fail(problem);
    return failed_;
  }
  Result<int32_t> end_capture() override {
    kernels::CudaProblem problem;
    const int32_t graph = device_->end_capture(problem);
    if (graph < 0) return Status(Code::kInternal, problem.text);
    return graph;
  }
  void launch(int32_t graph) override { device_->launch(graph); }
  void release_graph(int32_t graph) override { device_->release_graph(graph); }

  const kernels::CudaLibrary& library() const { return library_; }
  kernels::CudaDevice& cuda() { return *device_; }
  void add(StreamWatch& watch) { watches_.push_back(&watch); }
  void remove(StreamWatch& watch) { std::erase(watches_, &watch); }

 private:
  using Clock = std::chrono::steady_clock;

  // A rank that is gone leaves the exchanges of the others waiting, which would never end.
  void wait_for_ranks() {
    // Counted in pieces: a process that was stopped for a while must not find its deadlines passed.
    constexpr std::chrono::milliseconds kPiece(500), kLook(1);
    constexpr std::chrono::microseconds kSpin(200), kSleep(20);
    Clock::duration waited{};
    auto last = Clock::now();
    while (!device_->is_done()) {
      const auto now = Clock::now();
      if (now - last < kLook) {
        if (waited.count() == 0 && now - last < kSpin) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(kSleep);
        }
        continue;
      }
      waited += std::min<Clock::duration>(now - last, kPiece);
      last = now;
      for (StreamWatch* each : watches_) {
        const Status status = each->check(waited);
        if (status.ok()) continue;
        if (failed_.ok()) failed_ = status;
        for (StreamWatch* every : watches_) every->abort();
        return;
      }
    }
  }
  // Records a failure permanently: a lost device stays lost for every later caller.
  void fail(const kernels::CudaProblem& problem) {
    if (failed_.ok()) failed_ = Status(Code::kInternal, problem.text);
  }

  const kernels::CudaLibrary& library_;
  std::unique_ptr<kernels::CudaDevice> device_;
  std::vector<StreamWatch*> watches_;
  const bool is_fast_;  // matrices have the layout of its ops
  Status failed_;
};

}  // namespace specd
