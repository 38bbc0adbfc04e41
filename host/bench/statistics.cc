#include "host/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

namespace specd::host {
namespace {

constexpr size_t kLoopWindow = 64;
constexpr size_t kLoopRepeats = 4;

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

Interval median_interval(const std::vector<double>& values) {
  if (values.empty()) return {};
  std::mt19937_64 random(20);
  std::vector<double> medians, drawn(values.size());
  for (int i = 0; i < 2000; ++i) {
    for (double& each : drawn) each = values[random() % values.size()];
    medians.push_back(median(drawn));
  }
  return {percentile(medians, 0.025), percentile(medians, 0.975)};
}

bool ends_in_loop(const std::vector<int32_t>& tokens) {
  const size_t window = std::min(tokens.size(), kLoopWindow);
  const auto begin = tokens.end() - static_cast<std::ptrdiff_t>(window);
  for (size_t period = 1; period <= window / kLoopRepeats; ++period) {
    const auto shift = static_cast<std::ptrdiff_t>(period);
    if (std::equal(begin + shift, tokens.end(), begin)) return true;
  }
  return false;
}

}  // namespace specd::host
