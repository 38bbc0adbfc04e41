// How long a short request waits while a long prompt is being prefilled.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/engine.h"

namespace specd::host {

struct PrefillOptions {
  int32_t long_tokens = 4096;
  int32_t short_tokens = 32;
  int repeat = 5;
  // For the prompts' ids. All prompts differ, so none is found in a cache.
  uint64_t seed = 0;
};

// One round: the long prompt alone, the short one alone, then the short one sent while the long one
// is in its second chunk or later.
struct PrefillRound {
  double long_ms = 0;     // to its first token, alone
  double chunk_ms = 0;    // long_ms / the steps it took
  double short_ms = 0;    // to its first token, alone
  double meeting_ms = 0;  // to its first token, while the long one runs
};

// kFailedPrecondition when the long prompt takes too few steps to be met, or is over too soon.
Result<std::vector<PrefillRound>> measure_prefill(Engine& engine, const PrefillOptions& options,
                                                  const std::atomic<bool>& stop);

}  // namespace specd::host
