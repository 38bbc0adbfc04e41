// Log-probabilities for the requests that ask for them.
#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/ranks/step_output.h"
#include "core/step/plugin_batch.h"

namespace specd {

// The rows of this step that give tokens of the prompt their log-probabilities: [first, first + n)
// among the sequence's rows. Their logits decide nothing.
struct Scored {
  int32_t first = 0, n = 0;
};
Scored scored_rows(const ActiveSequence& member);
// Whether the logits of its rows must be copied before the step changes them.
bool wants_raw(const ActiveSequence& member);

// After commit(): hands each sequence the log-probabilities of what this step has read of its prompt
// and added to its text, computed on the host from the copied logits. A sequence fails alone when the
// logits of its prompt are not finite, or when there is no memory.
void report_logprobs(CpuDevice& host, const Members& members, const StepOutput& output,
                     int32_t vocab);

}  // namespace specd
