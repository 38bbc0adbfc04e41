// Totals over all requests of an engine. Written by the step thread when a text grows and when it is
// sent, read by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/base/histogram.h"
#include "core/request/request.h"

namespace specd {

struct RequestMetrics {
  std::array<std::atomic<uint64_t>, kFinishReasonCount> ended{};  // by FinishReason
  std::atomic<uint64_t> prompt_tokens{0};                         // of ended requests
  std::atomic<uint64_t> tokens{0};                                // of all texts

  DurationHistogram time_to_first_token;
  // One record for every token after a request's first. Tokens of one step share evenly the time
  // since the step before, so the sum is time and the count is tokens, however many arrive at once.
  DurationHistogram inter_token_latency;
  DurationHistogram queue_time, whole_time;     // of ended requests
  DurationHistogram prefill_time, decode_time;  // of requests that got a token
  TokenHistogram prompt_lengths, text_lengths;  // of ended requests
  TokenHistogram max_tokens;                    // that ended requests were allowed
};

}  // namespace specd
