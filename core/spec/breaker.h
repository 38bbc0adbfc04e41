// Suspends what fails again and again, and tries it again later. One success is enough then; each
// further failure doubles the pause. A breaker watches up to three things that fail apart from each other, such as
// the functions of a drafter.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace specd {

// [one thread at a time] all functions but is_open() and n_opened().
class Breaker {
 public:
  static constexpr uint64_t kFirstPauseNs = 1'000'000'000;
  static constexpr uint64_t kPauseNsMax = 300 * kFirstPauseNs;

  // Opens after so many failures in a row.
  explicit Breaker(int32_t failures_max) : failures_max_(failures_max) {}

  // Notes how `watched`, below 3, went. True when this opens the breaker. Ignored during a pause.
  bool record(size_t watched, bool worked, uint64_t now_ns);
  // [any] True during a pause.
  bool is_open(uint64_t now_ns) const { return now_ns < open_until_ns_; }
  // [any] How often it has opened.
  uint64_t n_opened() const { return n_opened_; }
  uint64_t pause_ns() const { return pause_ns_; }  // of the last opening; 0 when it works again

 private:
  const int32_t failures_max_;
  std::array<int32_t, 3> n_failed_{};  // in a row
  size_t opened_by_ = 0;
  uint64_t pause_ns_ = 0;
  std::atomic<uint64_t> open_until_ns_{0}, n_opened_{0};
};

}  // namespace specd
