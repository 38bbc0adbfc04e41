// The ranks of one process: the lead's end, and a thread with a device of its own for each follower.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/ranks/follower.h"
#include "core/ranks/ranks.h"

namespace specd {

class RankThreads final : public Ranks {
 public:
  struct Options {
    int32_t n_ranks = 2, n_stages = 1;  // ranks of a stage
    // [any] Opens the device of a follower.
    std::function<Result<std::unique_ptr<Device>>(int32_t rank)> open_device;
    std::chrono::nanoseconds spin{0};  // as in make_thread_ranks()
    std::chrono::milliseconds timeout{10'000};
  };
  // Starts the followers, which load nothing until the lead says so.
  RankThreads(const Options& options, std::vector<SharedModel> models);
  ~RankThreads() override;  // ends the group, wherever the followers are, and waits for them

 private:
  RankEnd& end() override { return ends_.front(); }
  void follow(const Options& options, RankEnd& end);

  const std::vector<SharedModel> models_;
  std::vector<RankEnd> ends_;  // of each rank
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace specd
