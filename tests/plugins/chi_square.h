// Whether counts follow a law.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace specd {

// The probability that a chi-square variable with this many degrees of freedom is above x: the
// regularized upper incomplete gamma function Q(df / 2, x / 2), by its series or its continued
// fraction (Abramowitz and Stegun 6.5.29, 6.5.31).
inline double chi_square_tail(double x, double df) {
  const double a = df / 2, z = x / 2;
  if (z <= 0) return 1;
  const double front = std::exp(a * std::log(z) - z - std::lgamma(a));
  if (z < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 10000 && term > sum * 1e-16; ++n) sum += term *= z / (a + n);
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 10000; ++n) {
    const double factor = -n * (n - a);
    b += 2;
    d = 1 / (factor * d + b);
    c = b + factor / c;
    h *= c * d;
    if (std::fabs(c * d - 1) < 1e-15) break;
  }
  return front * h;
}

// The p-value of counts against expected ones. Cells that expect less than 5 are merged into one.
inline double chi_square_p(const std::vector<double>& counted,
                           const std::vector<double>& expected) {
  double x2 = 0, few = 0, few_expected = 0;
  int cells = 0;
  const auto add = [&](double count, double expect) {
    x2 += (count - expect) * (count - expect) / expect;
    ++cells;
  };
  for (size_t i = 0; i < counted.size(); ++i) {
    if (expected[i] >= 5) {
      add(counted[i], expected[i]);
    } else {
      few += counted[i];
      few_expected += expected[i];
    }
  }
  if (few_expected >= 5) add(few, few_expected);
  if (few_expected == 0 && few > 0) return 0;  // what cannot be was seen
  return chi_square_tail(x2, cells - 1);
}

}  // namespace specd
