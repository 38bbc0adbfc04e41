// The ranks of one process: the lead's end, and a thread with a device of its own for each follower.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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
    std::string isa;
    int32_t threads = 1;  // of each follower's device
    bool bf16 = false;
    std::chrono::milliseconds timeout{10'000};
  };
  // Starts the followers, which load nothing until the lead says so.
  RankThreads(const Options& options, std::vector<SharedModel> models);
  ~RankThreads() override;  // ends the group, wherever the followers are, and waits for them

  Lead& lead() override { return lead_; }

 private:
  void follow(const Options& options, const RankEnd& end);

  const std::vector<SharedModel> models_;
  const std::vector<RankEnd> ends_;  // of each rank
  Lead lead_;
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace specd
