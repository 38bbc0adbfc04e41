// What all requests of an engine did together: written by the step thread as texts go out, read by
// any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/base/duration_histogram.h"
#include "core/request/request.h"

namespace specd {

struct RequestMetrics {
  std::array<std::atomic<uint64_t>, kFinishReasonCount> ended{};  // by FinishReason
  std::atomic<uint64_t> prompt_tokens{0};                         // of ended requests

  DurationHistogram time_to_first_token;
  // One for every token after a request's first: what a step gave is spread over the time since
  // the step before, so that the sum is time and the count is tokens, however many come at once.
  DurationHistogram inter_token_latency;
  DurationHistogram queue_time, whole_time;     // of ended requests
  DurationHistogram prefill_time, decode_time;  // of those that got a token
};

}  // namespace specd
