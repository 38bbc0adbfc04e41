// The few statistics that a comparison needs.
#pragma once

#include <cstdint>
#include <vector>

namespace specd::host {

// The values may be in any order; 0 without values.
double median(std::vector<double> values);
// The smallest value that at least `fraction` of all values do not exceed (nearest rank).
double percentile(std::vector<double> values, double fraction);

struct Interval {
  double low = 0, high = 0;
};
// 95 % interval of the median by bootstrap: 2000 resamples with a fixed seed. With one value both
// ends are that value.
Interval median_interval(const std::vector<double>& values);

// Whether a text ends in a loop: its last 64 tokens (or all, when they are fewer) repeat with a
// period of at most 16, at least 4 times. Such texts flatter drafters that look for repetition.
bool ends_in_loop(const std::vector<int32_t>& tokens);

}  // namespace specd::host
