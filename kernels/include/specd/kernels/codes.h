// Matrices of codes: weights of 4 or 8 bits with scales.
//
//   out[r][j] = sum over k of x[r][k] * weight[j][k],  g the group of k
//   weight[j][k] = (code[j][k] - zero[j][g]) * scale[j][g]    codes are integers (x_bits 8 and 16)
//   weight[j][k] = value(code[j][k]) * scale[j][g]            codes are E4M3FN (x_bits 32)
//
// The k of a matrix are put in a packed order and cut into runs: neighbors in that order of one
// group. A run is padded to a multiple of kRunGrain k; in the padding x and the code are 0. So
// act-order and odd sizes are a matter of the order alone.
//
// Strict with integers: x of a row is rounded run by run, with limit = 127 (x_bits 8) or 127 * 256
// (x_bits 16):
//   m = max |x|;  scale_x = m / limit;  q = x * (limit / m), rounded to nearest even
// or, where the matrix has an x_scale, scale_x = x_scale and q = x / x_scale, rounded so and kept within
// [-128, 127]; or scale_x = q = 0 where m < 2^-100, and scale_x = NaN, q = 0 where x has a NaN or an infinity.
//   sum = sum of q * (code - zero) over the run, in integers: exact, so in any order
//   out = fma(float(sum), scale_x * scale, out), from 0, run by run
// With x_bits 8 there is one run of one group: a row has one scale.
//
// 16 bits for x where the checkpoint rounds only weights: against float32 chains the error is below
// 2^-16 of the largest x of a run, the sums cost fewer instructions, and any tiling gives the
// same bits.
//
// Strict with E4M3FN (1 sign bit, 4 of exponent, 3 of mantissa; the largest is 448): x stays as it is.
//   sum = fma(x, value(code) / 256, sum), from 0, along the packed order of the run with its padding
//   out = fma(sum, scale * 256, out), from 0, run by run
// The bits of value / 256 as float16 are those of the code with a shift, also for subnormals. A scale
// times 256 must be finite, and the codes without a value, 0x7f and 0xff, must not be in a matrix.
#pragma once

#include "specd/kernels/types.h"

namespace specd::kernels {

inline constexpr int32_t kRunGrain = 8;
// Of the largest sum, 255 * 128 * n, that 32 bits hold.
inline constexpr int32_t kRun8Max = 65536;
// A run with x_bits 16 has at most this many k. With x_bits 32 it has any number.
inline constexpr int32_t kRun16Max = 128;

struct Run {
  int32_t begin = 0;  // in the packed order; a multiple of kRunGrain
  int32_t n = 0;      // with its padding; a multiple of kRunGrain, not 0
  int32_t group = 0;
};

// The packed order of k. The struct is in host memory, its arrays in that of the backend. Shared by the
// matrices of a kind; outlives them.
struct CodeOrder {
  const Run* runs = nullptr;        // [n_runs], one behind the other
  const int32_t* source = nullptr;  // [depth]: the k at a place, -1 = padding
  int32_t n_runs = 0;
  int32_t n_groups = 0;
  int32_t depth = 0;       // the n of all runs
  int32_t bits = 8;        // of a code, 4 or 8; 8 with x_bits 32
  int32_t x_bits = 8;      // 8 or 16: integers; 32: float32, and codes are E4M3FN
  float x_scale = 0;       // with x_bits 8: of every row; 0 = a row has its own
  bool has_zeros = false;  // of integers; else all zeros are 2^(bits - 1)
};

}  // namespace specd::kernels
