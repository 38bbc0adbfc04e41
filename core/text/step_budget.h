// What the rules of a tokenizer's file may cost on one text, all together: whoever writes the file
// must not choose how long a request takes, nor how long its text becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace specd {

class StepBudget {
 public:
  // Of a text of so many bytes as the user gave it.
  explicit StepBudget(size_t bytes)
      : left_(kMin + kPerByte * bytes), growth_left_(kGrowthMin + (kTimesMax - 1) * bytes) {}

  uint64_t left() const { return left_; }
  // False when there are not so many left.
  [[nodiscard]] bool take(uint64_t steps) {
    const bool enough = steps <= left_;
    left_ -= enough ? steps : left_;
    return enough;
  }

  // The bytes by which the rules may still make parts of the text longer.
  uint64_t growth_left() const { return growth_left_; }
  // A part is longer now. REQUIRES after <= before + growth_left()
  void take_growth(size_t before, size_t after) {
    if (after > before) growth_left_ -= after - before;
  }
  static constexpr uint64_t kTimesMax = 16;  // as long, and kGrowthMin more

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
                "the rules of the tokenizer's file take too many steps on this text");
}

// `rules` would make a part longer than growth_left() allows.
inline Status grows_too_large(const char* rules) {
  return Status(Code::kUnsupported, std::string("the ") + rules + " makes the text more than " +
                                        std::to_string(StepBudget::kTimesMax) + " times as long");
}

}  // namespace specd
