// Restores the floating-point environment of a thread after a call into foreign code.
//
// Strict arithmetic depends on it. A library linked with -ffast-math sets flush-to-zero in its
// constructor, and a plugin may change the rounding mode; both would change all later results.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace specd {

class FpEnvironment {
 public:
#if defined(__x86_64__)
  FpEnvironment() : saved_(_mm_getcsr()) {}
  ~FpEnvironment() {
    if (_mm_getcsr() != saved_) _mm_setcsr(saved_);
  }
#else
  FpEnvironment() { std::fegetenv(&saved_); }
  ~FpEnvironment() { std::fesetenv(&saved_); }
#endif
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned int saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace specd
