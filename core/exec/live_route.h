// A route that is being served: the pair of instances, its limits and its counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/instance.h"

namespace specd {

struct RouteCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> steps{0};   // sequence-steps that decided a token
  std::atomic<uint64_t> drafts{0};  // of them, those with at least one draft node
  std::atomic<uint64_t> drafted{0}, accepted{0}, rejected{0}, discarded{0};
  std::vector<std::atomic<uint64_t>> accepted_at;  // [max_depth] of them, by depth less one
  std::atomic<uint64_t> forward_ns{0};             // the route's share of the forwards, by rows
  std::atomic<uint64_t> cut{0};  // sequences' proposals and verdicts that were refused or cut
  std::atomic<uint64_t> sequences_lost{0};  // the drafter failed them; they went on plainly
};

// The last thing that went wrong with a route's plugins, for reports.
class LastProblem {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // guarded by mutex_
};

struct LiveRoute {
  std::string name;
  int32_t draft_nodes_max = 0;  // granted
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<Verifier> verifier;
  std::vector<size_t> tap_index;  // of the drafter's taps among the model's
  RouteCounters counters;
  LastProblem last_problem;

  // Counts n sequences whose proposal or verdict was refused or cut, and says why.
  void cut(uint64_t n, std::string why) {
    counters.cut += n;
    last_problem.set(std::move(why));
  }

  bool chain() const { return drafter->caps().tree_mode == SPECD_TREE_CHAIN; }
};

}  // namespace specd
