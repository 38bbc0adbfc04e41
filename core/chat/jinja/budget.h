// What one rendering may cost. A template or message that would cost more ends with an error
// instead of holding a thread or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace specd::jinja {

struct Limits {
  static constexpr size_t kTemplateBytes = 1 << 20;
  static constexpr size_t kTokens = 1 << 17;      // names, operators, texts between tags
  static constexpr int kSyntaxDepth = 200;        // nested expressions, and nested blocks
  static constexpr int kValueDepth = 100;         // lists in lists
  static constexpr int kEvaluationDepth = 500;    // nested calls of the evaluator, macros included
  static constexpr int64_t kRange = 100'000;      // as in jinja2's sandbox
  static constexpr size_t kJsonValues = 1 << 18;  // in one request, keys included
  static constexpr size_t kJsonBytes = size_t{32} << 20;  // memory of these values

  uint64_t steps_max = 3'000'000;            // nodes visited, items touched
  uint64_t bytes_max = uint64_t{192} << 20;  // copied or searched, in total
  size_t output_bytes_max = size_t{8} << 20;
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  // Both return false once the budget is spent.
  bool step(uint64_t n = 1) {
    steps_ += n;
    return steps_ <= limits_.steps_max;
  }
  bool bytes(uint64_t n) {
    bytes_ += n;
    return bytes_ <= limits_.bytes_max;
  }
  bool is_spent() const { return steps_ > limits_.steps_max || bytes_ > limits_.bytes_max; }
  const Limits& limits() const { return limits_; }

  Status exceeded() const {
    return steps_ > limits_.steps_max
               ? Status(Code::kInvalidArgument, "rendering takes more than " +
                                                    std::to_string(limits_.steps_max) +
                                                    " steps; send fewer or shorter messages")
               : Status(Code::kInvalidArgument, "rendering copies more than " +
                                                    std::to_string(limits_.bytes_max) +
                                                    " bytes; send fewer or shorter messages");
  }

 private:
  const Limits limits_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
};

#define SPECD_JINJA_STEPS(budget, n)                   \
  do {                                                 \
    if (!(budget).step(n)) return (budget).exceeded(); \
  } while (false)
#define SPECD_JINJA_BYTES(budget, n)                    \
  do {                                                  \
    if (!(budget).bytes(n)) return (budget).exceeded(); \
  } while (false)

}  // namespace specd::jinja
