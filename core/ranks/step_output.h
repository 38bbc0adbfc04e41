// The results of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device/staging.h"

namespace specd {

struct StepOutput {
  std::vector<int32_t> drawn;  // [logits rows]; -1 = the row's logits are not finite
  // Valid until Worker::new_columns() or the next run(); in device memory also for work that was
  // submitted before.
  Column<const int32_t> top;  // [logits rows, input.top_k], before penalties
  // [taps] in the order of the model's taps, each [tap rows, hidden]. `host` is null unless
  // input.taps_to_host.
  std::vector<Column<const float>> taps;
  // The laws that input.law_to_host asks for: its i-th one is row law_row[i] of `law`, [.., vocab], and
  // of `lse`, both in host memory. Valid as `top`.
  std::vector<int32_t> law_row;
  const float* law = nullptr;
  const float* lse = nullptr;
  const float* raw = nullptr;  // [input.raw_to_host, vocab] in host memory. Valid as `top`.
  uint64_t forward_ns = 0;     // from the first submission until the output was complete
};

}  // namespace specd
