// What is fixed for the calls of an instance beside the step, and how large its messages become.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/plugin/instance/instance.h"

namespace specd {

struct CallShape {
  uint32_t max_batch = 0;                // slots
  uint32_t node_capacity = 0;            // of a proposal, per sequence
  uint32_t n_taps = 0, hidden_size = 0;  // 0 = it reads no hidden states
  uint32_t top_k = 0;
  uint32_t vocab_size = 0;
  bool sends_parents = false, sends_flags = false;  // in its proposals
};

// `drafter` is active.
CallShape shape_of(const Drafter& drafter, uint32_t vocab_size, uint32_t hidden_size);
// Rows of one update(), which is at most some megabytes large.
uint32_t rows_max_of(const Drafter& drafter, const CallShape& shape);
// Bytes of a ring for the calls, and of one for the answers: at least three of the largest fit, so that a drafter
// may be some calls behind. `max_positions`: of a sequence.
size_t request_capacity(const CallShape& shape, uint32_t rows_max, uint32_t max_positions);
size_t reply_capacity(const CallShape& shape);

}  // namespace specd
