// What the rules of a tokenizer's file may cost on one text, all together: whoever writes the file
// must not choose how long a request takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"

namespace specd {

class StepBudget {
 public:
  // Of a text of so many bytes as the user gave it.
  explicit StepBudget(size_t bytes) : left_(kMin + kPerByte * bytes) {}

  uint64_t left() const { return left_; }
  // False when there are not so many left.
  [[nodiscard]] bool take(uint64_t steps) {
    const bool enough = steps <= left_;
    left_ -= enough ? steps : left_;
    return enough;
  }

 private:
  static constexpr uint64_t kPerByte = 200;
  static constexpr uint64_t kMin = 1'000'000;
  uint64_t left_;
};

inline Status take_steps(uint64_t steps, StepBudget& budget) {
  if (budget.take(steps)) return Status();
  return Status(Code::kUnsupported,
                "the rules of the tokenizer's file take too many steps on this text");
}

}  // namespace specd
