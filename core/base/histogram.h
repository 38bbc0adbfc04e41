// Counts values in fixed buckets: one writer, any number of readers, no lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/metrics.h"

namespace specd {

// The bounds `first`, 2 `first`, 5 `first`, 10 `first`, ..
template <size_t N>
constexpr std::array<uint64_t, N> one_two_five(uint64_t first) {
  constexpr uint64_t kSteps[] = {1, 2, 5};
  std::array<uint64_t, N> bounds{};
  for (size_t i = 0; i < N; ++i) {
    bounds[i] = first * kSteps[i % 3];
    if (i % 3 == 2) first *= 10;
  }
  return bounds;
}

// Nanoseconds, shown in seconds: from 100 us to 1000 s, shared by steps, tokens and requests.
struct Durations {
  static constexpr auto kBounds = one_two_five<22>(100'000);
  static constexpr double kShownAs = 1e9;
};
// Tokens: from 1 to a million.
struct TokenCounts {
  static constexpr auto kBounds = one_two_five<19>(1);
  static constexpr double kShownAs = 1;
};

template <typename Kind>
class Histogram {
 public:
  static constexpr auto kBounds = Kind::kBounds;

  // Counts `times` values. [one thread at a time; ordered by the caller]
  void record(uint64_t value, uint64_t times = 1) {
    const auto bucket = static_cast<size_t>(
        std::lower_bound(kBounds.begin(), kBounds.end(), value) - kBounds.begin());
    // With one writer a plain add is enough; fetch_add would use a locked instruction.
    const auto add = [](std::atomic<uint64_t>& to, uint64_t n) {
      to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    };
    add(counts_[bucket], times);
    add(sum_, value * times);
  }

  // [any] One series without labels, as shown. While the writer runs, counts and sum may differ by
  // one record().
  MetricSeries read() const {
    MetricSeries series;
    for (const auto& count : counts_)
      series.counts.push_back(count.load(std::memory_order_relaxed));
    series.sum = static_cast<double>(sum_.load(std::memory_order_relaxed)) / Kind::kShownAs;
    return series;
  }
  // kBounds as shown.
  static std::vector<double> bounds() {
    std::vector<double> shown;
    shown.reserve(kBounds.size());
    for (const uint64_t bound : kBounds)
      shown.push_back(static_cast<double>(bound) / Kind::kShownAs);
    return shown;
  }

 private:
  std::array<std::atomic<uint64_t>, Kind::kBounds.size() + 1> counts_{};
  std::atomic<uint64_t> sum_{0};
};

using DurationHistogram = Histogram<Durations>;
using TokenHistogram = Histogram<TokenCounts>;

}  // namespace specd
