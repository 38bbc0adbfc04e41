// Where requests are sent: an engine in this process (engine_backend.h), or a daemon through its
// socket (server_backend.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/engine.h"

namespace specd::host {

// The answer to one request; times are by the sender's clock.
struct Answer {
  std::vector<int32_t> prompt_tokens;  // only when asked for
  std::vector<int32_t> tokens;
  Usage usage;
  uint64_t start_ns = 0, first_ns = 0, end_ns = 0;  // sent, first token received, end received

  // Decoding: tokens after the first, and the steps that gave them.
  int64_t decode_tokens() const { return static_cast<int64_t>(tokens.size()) - 1; }
  int64_t decode_steps() const { return usage.steps - 1; }  // prefill's step draws the first token
  double ms_to_first() const { return static_cast<double>(first_ns - start_ns) / 1e6; }
  // REQUIRES decode_tokens() > 0
  double ms_per_token() const {
    return static_cast<double>(end_ns - first_ns) / 1e6 / static_cast<double>(decode_tokens());
  }
};

// A route's counters since it was made, requests of others included, and what it promises.
struct DraftCounts {
  Guarantee guarantee = Guarantee::kIdentical;
  uint64_t drafts = 0;                // with at least one node
  std::vector<uint64_t> accepted_at;  // by depth - 1
  uint64_t propose_ns = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // [any] Blocks until the request ended; kCancelled soon after `stop` is set.
  virtual Result<Answer> run(const Request& request, bool with_prompt_tokens,
                             const std::atomic<bool>& stop) = 0;
  virtual Result<ModelReport> model() = 0;
  // Replaces the drafter of a route by a new one that knows nothing of earlier requests. False if
  // that would disturb others; the drafter then keeps what it has learned.
  // REQUIRES that no request of this backend runs.
  virtual Result<bool> renew_drafter(const std::string& route, const std::atomic<bool>& stop) = 0;
  // [any] All zero for `off`.
  virtual Result<DraftCounts> draft_counts(const std::string& route) = 0;
};

}  // namespace specd::host
