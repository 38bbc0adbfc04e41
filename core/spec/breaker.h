// Suspends a drafter one of whose functions fails or overruns its time again and again, and tries it
// again later. One call of that function that works is enough then; each further failure doubles the
// pause.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace specd {

// Functions of a drafter whose calls are watched.
enum class DrafterCall : size_t { kBegin, kPropose, kUpdate };
constexpr std::array<const char*, 3> kDrafterCallNames = {"begin", "propose", "update"};

// [the thread of the drafter's calls] all functions but is_open().
class Breaker {
 public:
  static constexpr int32_t kFailuresMax = 5;  // in a row
  static constexpr uint64_t kFirstPauseNs = 1'000'000'000;
  static constexpr uint64_t kPauseNsMax = 300 * kFirstPauseNs;

  // Notes how a call ended. True when this opens the breaker. Ignored during a pause.
  bool record(DrafterCall call, bool worked, uint64_t now_ns);
  // [any] True during a pause.
  bool is_open(uint64_t now_ns) const { return now_ns < open_until_ns_; }
  // [any] How often it has opened.
  uint64_t n_opened() const { return n_opened_; }
  uint64_t pause_ns() const { return pause_ns_; }  // of the last opening; 0 when it works again

 private:
  std::array<int32_t, kDrafterCallNames.size()> n_failed_{};  // in a row, by function
  DrafterCall opened_by_ = DrafterCall::kBegin;
  uint64_t pause_ns_ = 0;
  std::atomic<uint64_t> open_until_ns_{0}, n_opened_{0};
};

}  // namespace specd
