#include "core/ranks/rank_threads.h"

#include <new>
#include <utility>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/base/to_size.h"
#include "core/device/thread_ranks.h"

namespace specd {
namespace {

std::vector<RankEnd> ends_of(const RankThreads::Options& options) {
  std::vector<RankEnd> ends;
  for (auto& end :
       make_thread_ranks(options.n_ranks * options.n_stages, options.timeout, options.spin)) {
    ends.emplace_back(std::move(end), options.n_ranks, options.n_stages);
  }
  return ends;
}

}  // namespace

RankThreads::RankThreads(const Options& options, std::vector<SharedModel> models)
    : models_(std::move(models)), ends_(ends_of(options)) {
  for (size_t rank = 1; rank < ends_.size(); ++rank) {
    threads_.push_back(
        start_thread("specd-rank", [this, options, rank] { follow(options, ends_[rank]); }));
  }
}

RankThreads::~RankThreads() {
  is_over_ = true;
  ends_.front().all->give_up(Status(Code::kCancelled, "it is over"));
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::follow(const Options& options, RankEnd& end) {
  try {
    const Result<std::unique_ptr<Device>> device = options.open_device(end.all->rank());
    if (!device.ok()) return end.all->give_up(device.status());
    const Status status = follow_on(*device.value(), end, models_);
    if (!is_over_) {
      log(LogLevel::kError, "rank " + std::to_string(end.all->rank()) + ": " + status.text());
    }
  } catch (const std::bad_alloc&) {
    end.all->give_up(Status(Code::kExhausted, kOutOfMemory));
  }
}

}  // namespace specd
