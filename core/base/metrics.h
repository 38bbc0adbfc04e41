// Metrics as plain data: families of series that any exposition format can be written from. Names
// and labels follow the conventions of Prometheus, but nothing here depends on its text format.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specd {

struct MetricSeries {
  std::vector<std::pair<std::string, std::string>> labels;  // unique within the family
  double value = 0;                                         // counter, gauge
  // Histogram: the observations in each bucket (not cumulative), and the sum of all observations.
  // There is one bucket more than the family has bounds; the last one is unbounded.
  std::vector<uint64_t> counts;
  double sum = 0;
};

struct MetricFamily {
  enum class Type { kCounter, kGauge, kHistogram };

  std::string name;  // [a-z][a-z0-9_]*; the name of a counter ends in _total
  std::string help;
  Type type = Type::kGauge;
  std::vector<double> bounds;  // histogram: the upper bounds of its buckets, ascending
  std::vector<MetricSeries> series;
};

}  // namespace specd
