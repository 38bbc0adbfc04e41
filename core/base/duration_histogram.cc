#include "core/base/duration_histogram.h"

#include <algorithm>

namespace specd {

void DurationHistogram::record(uint64_t ns, uint64_t times) {
  const auto bucket = static_cast<size_t>(std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), ns) -
                                          kBoundsNs.begin());
  // With one writer a plain add is enough; fetch_add would use a locked instruction.
  const auto add = [](std::atomic<uint64_t>& to, uint64_t n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  };
  add(counts_[bucket], times);
  add(sum_ns_, ns * times);
}

MetricSeries DurationHistogram::read() const {
  MetricSeries series;
  for (const auto& count : counts_) series.counts.push_back(count.load(std::memory_order_relaxed));
  series.sum = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
  return series;
}

std::vector<double> DurationHistogram::bounds() {
  std::vector<double> seconds;
  seconds.reserve(kBoundsNs.size());
  for (const uint64_t ns : kBoundsNs) seconds.push_back(static_cast<double>(ns) / 1e9);
  return seconds;
}

}  // namespace specd
