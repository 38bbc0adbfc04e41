// A drafter's work on one sequence, between begin() and end(). [step] only.
#pragma once

#include <cstdint>

namespace specd {

struct DrafterSession {
  enum class State { kNotBegun, kOn, kLost } state = State::kNotBegun;
  int32_t n_begun = 0;            // tokens passed to begin()
  void* drafter_state = nullptr;  // owned by the plugin

  bool is_on() const { return state == State::kOn; }
};

}  // namespace specd
