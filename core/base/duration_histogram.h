// Counts durations in fixed buckets: one writer, any number of readers, no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/metrics.h"

namespace specd {

class DurationHistogram {
 public:
  // 1, 2, 5, 10, ... from 100 us to 1000 s, shared by steps, tokens and requests.
  static constexpr std::array<uint64_t, 22> kBoundsNs = [] {
    std::array<uint64_t, 22> bounds{};
    uint64_t decade = 100'000;
    for (size_t i = 0; i < bounds.size(); ++i) {
      constexpr uint64_t kSteps[] = {1, 2, 5};
      bounds[i] = decade * kSteps[i % 3];
      if (i % 3 == 2) decade *= 10;
    }
    return bounds;
  }();

  // Counts `times` durations of `ns` each. [one thread at a time; ordered by the caller]
  void record(uint64_t ns, uint64_t times = 1);

  // [any] One series without labels, in seconds. While the writer runs, counts and sum may differ
  // by one record().
  MetricSeries read() const;
  // kBoundsNs in seconds.
  static std::vector<double> bounds();

 private:
  std::array<std::atomic<uint64_t>, kBoundsNs.size() + 1> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

}  // namespace specd
