// The results of a step, in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specd {

struct StepOutput {
  std::vector<int32_t> drawn;  // [logits rows]; -1 = the row's logits are not finite
  std::vector<int32_t> top1;   // [logits rows], before penalties; empty unless input.wants_top1
  // [taps] in the order of the model's taps, each [tap rows, hidden]. Valid until
  // Worker::new_columns() or the next run().
  std::vector<std::span<const float>> taps;
  uint64_t forward_ns = 0;  // from the first submission until the output was complete
};

}  // namespace specd
