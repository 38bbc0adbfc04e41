#include "core/device/cuda_ranks.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/device/agree.h"
#include "core/device/open_cuda_device.h"

namespace specd {
namespace {

class CudaRankEnd final : public Exchanges, private StreamWatch {
 public:
  CudaRankEnd(OpenCudaDevice& device, Collective& host, std::unique_ptr<kernels::CudaRank> rank)
      : device_(device), host_(host), rank_(std::move(rank)) {
    device_.add(*this);
  }
  ~CudaRankEnd() override {
    (void)device_.synchronize();
    device_.remove(*this);
  }

  int32_t rank() const override { return host_.rank(); }
  int32_t n_ranks() const override { return host_.n_ranks(); }
  void all_gather(void* data, uint64_t bytes) override { rank_->all_gather(data, bytes); }
  void gather(const void* part, void* parts, uint64_t bytes, int32_t root) override {
    rank_->gather(part, parts, bytes, root);
  }
  void broadcast(void* data, uint64_t bytes, int32_t root) override {
    rank_->broadcast(data, bytes, root);
  }
  void send(const void* data, uint64_t bytes, int32_t to) override { rank_->send(data, bytes, to); }
  void receive(void* data, uint64_t bytes, int32_t from) override {
    rank_->receive(data, bytes, from);
  }

 private:
  Status check(std::chrono::steady_clock::duration waited) override {
    SPECD_OK_OR_RETURN(host_.status());
    kernels::CudaProblem problem;
    if (!rank_->check(problem)) {
      host_.give_up(Status(Code::kUnavailable, problem.text));
    } else if (const std::chrono::milliseconds timeout = host_.timeout(); waited > timeout) {
      host_.give_up(Status(Code::kDeadlineExceeded, "its device has waited " +
                                                        std::to_string(timeout.count()) +
                                                        " ms for an exchange with " + others()));
    }
    return host_.status();
  }
  void abort() override { rank_->abort(); }

  // NCCL does not say for which it waits.
  std::string others() const {
    std::string ranks;
    for (int32_t rank = 0; rank < n_ranks(); ++rank) {
      if (rank != host_.rank()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return (n_ranks() == 2 ? "rank " : "some of the ranks ") + ranks;
  }

  OpenCudaDevice& device_;
  Collective& host_;
  const std::unique_ptr<kernels::CudaRank> rank_;
};

// Waits for the others while the group lives, for minutes at most. A time in which the process was stopped
// counts as half a second, as in thread_ranks.cc.
class Joining final : public kernels::CudaWait {
 public:
  explicit Joining(const Collective& host) : host_(host) {}
  bool goes_on() override {
    const auto now = Clock::now();
    left_ -= std::min<Clock::duration>(now - last_, std::chrono::milliseconds(500));
    last_ = now;
    return host_.status().ok() && left_.count() > 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Collective& host_;
  Clock::duration left_ = std::chrono::minutes(5);
  Clock::time_point last_ = Clock::now();
};

}  // namespace

Result<std::unique_ptr<Exchanges>> join_cuda_ranks(Device& device, Collective& host) {
  auto& cuda = static_cast<OpenCudaDevice&>(device);
  kernels::CudaProblem problem;
  kernels::CudaGroupId id;
  const auto told = [&](bool done) {
    return done ? Status() : Status(Code::kUnsupported, device.name() + ": " + problem.text);
  };
  SPECD_OK_OR_RETURN(
      agree(host, told(cuda.library().make_group(host.rank() == 0 ? &id : nullptr, problem))));
  host.broadcast(&id, sizeof(id), 0);
  SPECD_OK_OR_RETURN(host.status());
  Joining joining(host);
  std::unique_ptr<kernels::CudaRank> rank(
      cuda.cuda().join(id, host.rank(), host.n_ranks(), joining, problem));
  // The others wait in NCCL, which may not tell them.
  if (rank == nullptr) host.give_up(told(false));
  SPECD_OK_OR_RETURN(agree(host, Status()));
  return std::unique_ptr<Exchanges>(std::make_unique<CudaRankEnd>(cuda, host, std::move(rank)));
}

}  // namespace specd
