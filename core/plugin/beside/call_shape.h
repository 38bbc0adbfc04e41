// What is fixed for the calls of an instance beside the step, and how large its messages become.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/plugin/beside/ring.h"
#include "specd/plugin_api/drafter.h"

namespace specd {

struct CallShape {
  uint32_t max_batch = 0;                // slots
  uint32_t node_capacity = 0;            // of a proposal, per sequence
  uint32_t n_taps = 0, hidden_size = 0;  // 0 = it reads no hidden states
  uint32_t top_k = 0;
  uint32_t vocab_size = 0;
  bool sends_parents = false, sends_flags = false;  // in its proposals
};

// Of a drafter that is, or will be, activated with this grant.
CallShape shape_of(const specd_drafter_caps& caps, const specd_drafter_grant& grant,
                   uint32_t vocab_size, uint32_t hidden_size);
// Rows of one update(), which is at most some megabytes large.
uint32_t rows_max_of(const specd_drafter_grant& grant, const CallShape& shape);
// Bytes of a ring for the calls, and of one for the answers: at least three of the largest fit, so that a drafter
// may be some calls behind. `max_positions`: of a sequence.
size_t request_capacity(const CallShape& shape, uint32_t rows_max, uint32_t max_positions);
size_t reply_capacity(const CallShape& shape);
// Of both rings, with what lies before them.
uint64_t rings_bytes(const CallShape& shape, uint32_t rows_max, uint32_t max_positions);

// Counts what both rings hold, as long as this lives. `total`: null = nobody counts.
class CountedRings {
 public:
  CountedRings(std::atomic<uint64_t>* total, size_t request_capacity, size_t reply_capacity)
      : total_(total), bytes_(rings_bytes(request_capacity, reply_capacity)) {
    if (total_ != nullptr) *total_ += bytes_;
  }
  ~CountedRings() {
    if (total_ != nullptr) *total_ -= bytes_;
  }
  CountedRings(const CountedRings&) = delete;
  CountedRings& operator=(const CountedRings&) = delete;

 private:
  std::atomic<uint64_t>* const total_;
  const uint64_t bytes_;
};

}  // namespace specd
