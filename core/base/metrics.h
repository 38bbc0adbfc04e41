// What is measured, as plain data: families of series, ready to be written in any exposition
// format. Names and labels follow the conventions of Prometheus; nothing here knows its text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specd {

struct MetricSeries {
  std::vector<std::pair<std::string, std::string>> labels;  // unique within the family
  double value = 0;                                         // counter, gauge
  // Histogram: observations of each bucket alone, one more than the family has bounds (the last
  // has none), and the sum of all observations.
  std::vector<uint64_t> counts;
  double sum = 0;
};

struct MetricFamily {
  enum class Type { kCounter, kGauge, kHistogram };

  std::string name;  // [a-z][a-z0-9_]*; a counter's ends in _total
  std::string help;
  Type type = Type::kGauge;
  std::vector<double> bounds;  // histogram: the largest value of each bucket, ascending
  std::vector<MetricSeries> series;
};

}  // namespace specd
