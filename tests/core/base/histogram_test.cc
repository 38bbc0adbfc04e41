#include "core/base/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

namespace specd {
namespace {

TEST(DurationHistogram, counts_what_a_sorted_list_counts) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(3, 13);  // 1 us to 10000 s
  std::vector<uint64_t> all(DurationHistogram::kBounds.begin(),
                            DurationHistogram::kBounds.end());  // a bound is in its own bucket
  for (const uint64_t bound : DurationHistogram::kBounds) all.push_back(bound + 1);
  for (int i = 0; i < 5000; ++i)
    all.push_back(static_cast<uint64_t>(std::pow(10, exponent(random))));
  DurationHistogram histogram;
  long double sum = 0;
  for (const uint64_t ns : all) {
    histogram.record(ns);
    sum += static_cast<long double>(ns);
  }
  std::sort(all.begin(), all.end());

  const MetricSeries series = histogram.read();
  const std::vector<double> bounds = DurationHistogram::bounds();
  ASSERT_EQ(series.counts.size(), bounds.size() + 1);
  ASSERT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
  EXPECT_EQ(bounds.front(), 0.0001);
  EXPECT_EQ(bounds.back(), 1000);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    cumulative += series.counts[i];
    const auto at_most = std::count_if(all.begin(), all.end(), [&](uint64_t ns) {
      return static_cast<long double>(ns) <= std::round(bounds[i] * 1e9L);
    });
    EXPECT_EQ(cumulative, static_cast<uint64_t>(at_most)) << "bucket " << i;
  }
  EXPECT_EQ(cumulative + series.counts.back(), all.size());
  EXPECT_NEAR(series.sum, static_cast<double>(sum / 1e9L), 1e-9 * series.sum);
}

TEST(DurationHistogram, one_record_may_count_many) {
  DurationHistogram histogram;
  histogram.record(3'000'000, 4);
  histogram.record(3'000'000, 0);
  const MetricSeries series = histogram.read();
  EXPECT_EQ(*std::max_element(series.counts.begin(), series.counts.end()), 4u);
  EXPECT_DOUBLE_EQ(series.sum, 0.012);
}

TEST(DurationHistogram, a_reader_beside_the_writer_never_sees_counts_go_down) {
  DurationHistogram histogram;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t i = 0; i < 200'000; ++i) histogram.record(i * 1000);
    done = true;
  });
  std::vector<uint64_t> last(DurationHistogram::kBounds.size() + 1, 0);
  while (!done) {
    const MetricSeries now = histogram.read();
    for (size_t i = 0; i < last.size(); ++i) ASSERT_GE(now.counts[i], last[i]);
    last = now.counts;
  }
  writer.join();
  uint64_t total = 0;
  for (const uint64_t n : histogram.read().counts) total += n;
  EXPECT_EQ(total, 200'000u);
}

TEST(TokenHistogram, counts_tokens_as_they_are) {
  TokenHistogram histogram;
  for (const uint64_t n : {0, 1, 2, 3, 1'000'000, 1'000'001}) histogram.record(n);
  const std::vector<double> bounds = TokenHistogram::bounds();
  EXPECT_EQ(std::vector<double>(bounds.begin(), bounds.begin() + 4),
            (std::vector<double>{1, 2, 5, 10}));
  EXPECT_EQ(bounds.back(), 1e6);
  const MetricSeries series = histogram.read();
  EXPECT_EQ(std::vector<uint64_t>(series.counts.begin(), series.counts.begin() + 3),
            (std::vector<uint64_t>{2, 1, 1}));
  EXPECT_EQ(series.counts[bounds.size() - 1], 1u);
  EXPECT_EQ(series.counts.back(), 1u);
  EXPECT_EQ(series.sum, 2'000'007);
}

}  // namespace
}  // namespace specd
