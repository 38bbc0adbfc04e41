// exp and log over F32x16, in operations that round alike on every instruction set, so all give the same
// bits. Errors against double over the stated ranges: tests/kernels/math_test.cc.
#pragma once

#include "kernels/cpu/lanes.h"

namespace specd::kernels::SPECD_ISA {

// e^x for every x: 0 for -inf, +inf for +inf, NaN for NaN; subnormal results are rounded correctly.
// x = n ln 2 + r, |r| <= ln 2 / 2; degree 7 Taylor polynomial in r (remainder below 2^-27).
SPECD_INLINE F32x16 exp(F32x16 x) {
  // Beyond these bounds the result is 0 or infinity. A NaN is the second operand and so survives.
  x = max(set1(-104.0f), x);
  x = min(set1(89.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const F32x16 shifter = set1(12582912.0f);
  const F32x16 shifted = fma(x, set1(1.44269504f), shifter);
  const F32x16 n = sub(shifted, shifter);
  F32x16 r = fma(n, set1(-0.693359375f), x);  // ln 2 in two parts; the first has 9 bits
  r = fma(n, set1(2.12194440e-4f), r);
  F32x16 p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(mul(r, r), p, r);
  p = add(p, set1(1.0f));
#if SPECD_ISA_LEVEL == 2
  return {_mm512_scalef_ps(p.v, n.v)};  // p * 2^n, rounded once, as below
#else
  // 2^n as two factors, since 2^n may be subnormal or too large. The first product is exact.
  const I32x16 n_int = sub(as_int(shifted), as_int(shifter));
  const I32x16 half = shift_right<1>(n_int);
  const I32x16 rest = sub(n_int, half);
  const I32x16 bias = set1_int(127);
  p = mul(p, as_float(shift_left<23>(add(half, bias))));
  return mul(p, as_float(shift_left<23>(add(rest, bias))));
#endif
}

// ln x for positive, normal, finite x. Exactly 0 for 1, with small relative error near 1.
// x = m 2^e with m in [sqrt 1/2, sqrt 2); polynomial: Cephes logf.
SPECD_INLINE F32x16 log(F32x16 x) {
  const I32x16 bits = as_int(x);
  const I32x16 exponent = shift_right<23>(sub(bits, set1_int(0x3f3504f3u)));
  const F32x16 e = to_float(exponent);
  const F32x16 f = sub(as_float(sub(bits, shift_left<23>(exponent))), set1(1.0f));
  const F32x16 z = mul(f, f);
  F32x16 p = set1(7.0376836292e-2f);
  p = fma(p, f, set1(-1.1514610310e-1f));
  p = fma(p, f, set1(1.1676998740e-1f));
  p = fma(p, f, set1(-1.2420140846e-1f));
  p = fma(p, f, set1(1.4249322787e-1f));
  p = fma(p, f, set1(-1.6668057665e-1f));
  p = fma(p, f, set1(2.0000714765e-1f));
  p = fma(p, f, set1(-2.4999993993e-1f));
  p = fma(p, f, set1(3.3333331174e-1f));
  F32x16 y = mul(mul(p, f), z);
  y = fma(e, set1(-2.12194440e-4f), y);
  y = fma(z, set1(-0.5f), y);
  return fma(e, set1(0.693359375f), add(f, y));
}

}  // namespace specd::kernels::SPECD_ISA
