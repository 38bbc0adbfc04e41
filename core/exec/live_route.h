// A route that is being served: the pair of instances, its limits and its counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plugin/instance.h"

namespace specd {

struct RouteCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> steps{0};  // sequence-steps that decided a token
  std::atomic<uint64_t> drafted{0}, accepted{0}, rejected{0}, discarded{0};
  std::atomic<uint64_t> cut{0};           // proposals and verdicts in which validation found a defect
  std::atomic<uint64_t> sequences_lost{0};  // the drafter failed them; they went on plainly
};

struct LiveRoute {
  std::string name;
  int32_t draft_nodes_max = 0;  // granted
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<Verifier> verifier;
  std::vector<size_t> tap_index;  // of the drafter's taps among the model's
  RouteCounters counters;

  bool chain() const { return drafter->caps().tree_mode == SPECD_TREE_CHAIN; }
};

}  // namespace specd
