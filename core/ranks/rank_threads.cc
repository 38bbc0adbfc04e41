#include "core/ranks/rank_threads.h"

#include <utility>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/base/to_size.h"
#include "core/device/thread_ranks.h"

namespace specd {
namespace {

// As in the worker pool, but not where ranks wait for processors.
std::chrono::nanoseconds spin_of(const RankThreads::Options& options) {
  const unsigned processors = std::thread::hardware_concurrency();
  const auto wanted = static_cast<unsigned>(options.n_ranks * options.threads);
  return processors == 0 || wanted <= processors ? std::chrono::microseconds(50)
                                                 : std::chrono::microseconds(0);
}

}  // namespace

RankThreads::RankThreads(const Options& options, std::vector<SharedModel> models)
    : models_(std::move(models)),
      ends_(make_thread_ranks(options.n_ranks, options.timeout, spin_of(options))),
      lead_(*ends_.front()) {
  for (size_t rank = 1; rank < ends_.size(); ++rank) {
    threads_.push_back(
        start_thread("specd-rank", [this, options, rank] { follow(options, rank); }));
  }
}

RankThreads::~RankThreads() {
  lead_.stop();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::follow(const Options& options, size_t rank) {
  Collective& end = *ends_[rank];
  const Result<std::unique_ptr<CpuDevice>> device =
      CpuDevice::create(options.isa, options.threads, options.bf16);
  if (!device.ok()) return end.give_up(device.status());
  Follower follower(*device.value(), end, models_);
  const Status status = follower.run();
  if (!status.ok()) log(LogLevel::kError, "rank " + std::to_string(rank) + ": " + status.text());
}

}  // namespace specd
