#include "core/ranks/rank_threads.h"

#include <new>
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
  const auto wanted = static_cast<unsigned>(options.n_ranks * options.n_stages * options.threads);
  return processors == 0 || wanted <= processors ? std::chrono::microseconds(50)
                                                 : std::chrono::microseconds(0);
}

std::vector<std::unique_ptr<Collective>> stages_of(
    const std::vector<std::unique_ptr<Collective>>& all, int32_t n_ranks) {
  std::vector<std::unique_ptr<Collective>> stages;
  stages.reserve(all.size());
  for (const auto& end : all) {
    stages.push_back(end->group(end->rank() / n_ranks * n_ranks, n_ranks));
  }
  return stages;
}

}  // namespace

RankThreads::RankThreads(const Options& options, std::vector<SharedModel> models)
    : models_(std::move(models)),
      all_(
          make_thread_ranks(options.n_ranks * options.n_stages, options.timeout, spin_of(options))),
      stage_(stages_of(all_, options.n_ranks)),
      lead_(links_of(options, 0)) {
  for (size_t rank = 1; rank < all_.size(); ++rank) {
    threads_.push_back(
        start_thread("specd-rank", [this, options, rank] { follow(options, rank); }));
  }
}

RankThreads::~RankThreads() {
  is_over_ = true;
  all_.front()->give_up(Status(Code::kCancelled, "it is over"));
  for (std::thread& thread : threads_) thread.join();
}

RankLinks RankThreads::links_of(const Options& options, size_t rank) const {
  return {.all = all_[rank].get(),
          .stage = stage_[rank].get(),
          .split = split_of(static_cast<int32_t>(rank), options.n_ranks, options.n_stages)};
}

void RankThreads::follow(const Options& options, size_t rank) {
  try {
    const Result<std::unique_ptr<CpuDevice>> device =
        CpuDevice::create(options.isa, options.threads, options.bf16);
    if (!device.ok()) return all_[rank]->give_up(device.status());
    Follower follower(*device.value(), links_of(options, rank), models_);
    const Status status = follower.run();
    if (!is_over_) log(LogLevel::kError, "rank " + std::to_string(rank) + ": " + status.text());
  } catch (const std::bad_alloc&) {
    all_[rank]->give_up(Status(Code::kExhausted, kOutOfMemory));
  }
}

}  // namespace specd
