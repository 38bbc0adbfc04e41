// What the implementations of Collective have in common: the kinds of exchanges, and the words of their errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "core/base/status.h"

namespace specd {

// How long a rank looks for what another one does before it sleeps: as in the worker pool, but not where
// threads wait for processors. `n_threads`: of the ranks on this machine.
inline std::chrono::nanoseconds rank_spin(int32_t n_threads) {
  const unsigned processors = std::thread::hardware_concurrency();
  const bool has_room = processors == 0 || static_cast<unsigned>(n_threads) <= processors;
  return std::chrono::microseconds(has_room ? 50 : 0);
}

enum class Exchange : int32_t { kAllGather, kGather, kBroadcast, kSend, kCommand };

inline const char* exchange_name(Exchange exchange) {
  switch (exchange) {
    case Exchange::kAllGather:
      return "all_gather";
    case Exchange::kGather:
      return "gather";
    case Exchange::kBroadcast:
      return "broadcast";
    case Exchange::kSend:
      return "send";
    case Exchange::kCommand:
      return "command";
  }
  return "?";
}

// Where a rank is.
struct ExchangePoint {
  int32_t rank;
  Exchange exchange;
  uint64_t bytes;

  std::string text() const {
    return std::string(exchange_name(exchange)) + " of " + std::to_string(bytes) + " bytes";
  }
};

inline Status ranks_disagree(const ExchangePoint& from, const ExchangePoint& to) {
  return Status(Code::kInternal, "rank " + std::to_string(from.rank) + " is at " + from.text() +
                                     ", rank " + std::to_string(to.rank) + " at " + to.text());
}
inline Status rank_is_late(int32_t late, Exchange exchange, std::chrono::milliseconds timeout,
                           int32_t waiting) {
  return Status(Code::kDeadlineExceeded, "rank " + std::to_string(late) + " did not take part in " +
                                             exchange_name(exchange) + " within " +
                                             std::to_string(timeout.count()) + " ms; rank " +
                                             std::to_string(waiting) + " waited for it");
}
inline Status rank_gave_up(int32_t rank, const Status& why) {
  return Status(Code::kUnavailable,
                "rank " + std::to_string(rank) + " gave up: " + why.to_string());
}

}  // namespace specd
