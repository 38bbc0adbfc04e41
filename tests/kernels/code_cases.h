// Kinds of matrices of codes and their packed order of k, for the tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "specd/kernels/codes.h"

namespace specd::kernels {

// How k is grouped, as a file has it.
struct CodeCase {
  const char* name;
  int32_t bits = 8, x_bits = 8;
  int32_t group = 0;  // 0 = one for all k
  float x_scale = 0;
  bool has_zeros = false;
  bool shuffled = false;  // k belong to groups in any order
};
inline constexpr CodeCase kCodeCases[] = {
    {.name = "w8a8"},
    {.name = "w8a8 with zeros", .has_zeros = true},
    {.name = "w8a8 with one scale for x", .x_scale = 0.03f},
    {.name = "w4a8", .bits = 4},
    {.name = "w4a8 with zeros", .bits = 4, .has_zeros = true},
    {.name = "w8a16 in groups of 64", .x_bits = 16, .group = 64},
    {.name = "w8a16 in groups of 200", .x_bits = 16, .group = 200},
    {.name = "w8a16 shuffled", .x_bits = 16, .group = 32, .has_zeros = true, .shuffled = true},
    {.name = "w4a16 in groups of 128", .bits = 4, .x_bits = 16, .group = 128},
    {.name = "w4a16 with zeros", .bits = 4, .x_bits = 16, .group = 64, .has_zeros = true},
    {.name = "w4a16 in groups of 36", .bits = 4, .x_bits = 16, .group = 36, .has_zeros = true},
    {.name = "w4a16 of one group", .bits = 4, .x_bits = 16},
    {.name = "w4a16 shuffled",
     .bits = 4,
     .x_bits = 16,
     .group = 32,
     .has_zeros = true,
     .shuffled = true},
    {.name = "fp8", .x_bits = 32},
    {.name = "fp8 in blocks of 128", .x_bits = 32, .group = 128},
    {.name = "fp8 in groups of 36", .x_bits = 32, .group = 36},
    {.name = "fp8 shuffled", .x_bits = 32, .group = 32, .shuffled = true},
};

// The value of an E4M3FN code, by arithmetic on its fields.
inline float widen_f8(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  return sign * std::ldexp(static_cast<float>((exponent == 0 ? 0 : 8) + mantissa),
                           (exponent == 0 ? 1 : exponent) - 10);
}

constexpr bool has_value(uint8_t code) { return (code & 0x7f) != 0x7f; }
inline uint8_t random_code(const CodeCase& kind, std::mt19937& engine) {
  for (;;) {
    const auto code = static_cast<uint8_t>(engine() % (1u << kind.bits));
    if (kind.x_bits != 32 || has_value(code)) return code;
  }
}

// The groups, in each the k; runs of at most kRun16Max with x_bits 16.
struct OrderOfCase {
  std::vector<int32_t> group_of;  // [n_in]
  std::vector<Run> runs;
  std::vector<int32_t> source;
  CodeOrder order;  // points to those

  OrderOfCase(const CodeCase& kind, int32_t n_in, std::mt19937& engine) {
    const int32_t group = kind.group == 0 ? n_in : kind.group;
    group_of.resize(static_cast<size_t>(n_in));
    for (int32_t k = 0; k < n_in; ++k) group_of[static_cast<size_t>(k)] = k / group;
    if (kind.shuffled) std::shuffle(group_of.begin(), group_of.end(), engine);
    std::vector<int32_t> ks(static_cast<size_t>(n_in));
    std::iota(ks.begin(), ks.end(), 0);
    std::stable_sort(ks.begin(), ks.end(), [&](int32_t a, int32_t b) {
      return group_of[static_cast<size_t>(a)] < group_of[static_cast<size_t>(b)];
    });
    const int32_t longest = kind.x_bits == 16 ? kRun16Max : n_in;
    for (size_t i = 0; i < ks.size();) {
      Run run{.begin = static_cast<int32_t>(source.size()),
              .group = group_of[static_cast<size_t>(ks[i])]};
      for (; i < ks.size() && run.n < longest && group_of[static_cast<size_t>(ks[i])] == run.group;
           ++i, ++run.n) {
        source.push_back(ks[i]);
      }
      for (; run.n % kRunGrain != 0; ++run.n) source.push_back(-1);
      runs.push_back(run);
    }
    order = {.runs = runs.data(),
             .source = source.data(),
             .n_runs = static_cast<int32_t>(runs.size()),
             .n_groups = (n_in + group - 1) / group,
             .depth = static_cast<int32_t>(source.size()),
             .bits = kind.bits,
             .x_bits = kind.x_bits,
             .x_scale = kind.x_scale,
             .has_zeros = kind.has_zeros};
  }
  OrderOfCase(const OrderOfCase&) = delete;
  OrderOfCase& operator=(const OrderOfCase&) = delete;
};

}  // namespace specd::kernels
