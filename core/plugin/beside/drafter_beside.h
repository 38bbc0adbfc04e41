// A drafter that works beside the step: on a thread of its own (DrafterThread), or in a process of its own
// (core/plugin/process).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/plugin/beside/client.h"
#include "core/plugin/instance/drafter_calls.h"

namespace specd {

struct BesideTerms {
  uint32_t vocab_size = 0, hidden_size = 0;
  uint32_t max_positions = 0;                     // of a sequence
  ClientLimits limits;                            // of a shadow: no wait_ns
  OnCalled on_called;                             // not used by a shadow
  std::atomic<uint64_t>* hidden_bytes = nullptr;  // of hidden states that were copied; may be null
  std::atomic<uint64_t>* ring_bytes =
      nullptr;  // that the rings hold now; may be null, must outlive them
};

class DrafterBeside {
 public:
  virtual ~DrafterBeside() = default;
  virtual DrafterCalls& calls() = 0;      // [step]
  virtual uint32_t rows_max() const = 0;  // of one update()
  // Ends the sequences that are left, and the thread. False when the call that runs has not returned by then.
  // No [step] call may follow. [control]
  virtual bool stop(std::chrono::milliseconds limit) = 0;
  // [any] The drafter is called no more: the call that runs is its last.
  virtual void abandon() = 0;
};

}  // namespace specd
