// What all rules of a tokenizer file together may cost on one text. The author of a file must not
// decide how long a request takes or how large its text becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace specd {

class StepBudget {
 public:
  // `bytes`: the size of the user's text.
  explicit StepBudget(size_t bytes)
      : left_(kMin + kPerByte * bytes), growth_left_(kGrowthMin + (kTimesMax - 1) * bytes) {}

  uint64_t left() const { return left_; }
  // Returns false, and takes what is left, when fewer steps are left.
  [[nodiscard]] bool take(uint64_t steps) {
    const bool enough = steps <= left_;
    left_ -= enough ? steps : left_;
    return enough;
  }

  // How many bytes the rules may still add to the text.
  uint64_t growth_left() const { return growth_left_; }
  // A part grew from `before` to `after` bytes. REQUIRES after <= before + growth_left()
  void take_growth(size_t before, size_t after) {
    if (after > before) growth_left_ -= after - before;
  }
  // A text may become this many times as long, plus kGrowthMin bytes.
  static constexpr uint64_t kTimesMax = 16;

 private:
  static constexpr uint64_t kPerByte = 200;
  static constexpr uint64_t kMin = 1'000'000;
  static constexpr uint64_t kGrowthMin = 4096;
  uint64_t left_;
  uint64_t growth_left_;
};

inline Status take_steps(uint64_t steps, StepBudget& budget) {
  if (budget.take(steps)) return Status();
  return Status(Code::kUnsupported,
                "the rules of the tokenizer file take too many steps on this text");
}

// The error when `rules` would make the text longer than growth_left() allows.
inline Status grows_too_large(const char* rules) {
  return Status(Code::kUnsupported, std::string("the ") + rules + " makes the text more than " +
                                        std::to_string(StepBudget::kTimesMax) + " times as long");
}

}  // namespace specd
