// Finds the matches of an expression of tokenizer.json as Oniguruma does: the first match from the
// left, alternatives in their order. Time and memory are bounded by construction: what failed once
// at a place is never tried there again, and a budget of steps ends what is left.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/text/expression_syntax.h"
#include "core/text/step_budget.h"

namespace specd {

// Immutable; const calls are thread-safe.
class Expression {
 public:
  struct Match {
    size_t begin = 0;  // byte offsets
    size_t end = 0;    // may equal begin
  };

  // kUnsupported or kDataLoss with the place in the expression.
  static Result<Expression> compile(std::string_view expression, const std::string& where);

  // Appends all matches, one after the other. REQUIRES well-formed UTF-8.
  // kUnsupported, naming the expression and the byte, when they take more steps than `budget` has
  // (lookaheads that find what they look for far away).
  Status find_all(std::string_view text, StepBudget& budget, std::vector<Match>& matches) const;

  bool may_match_nothing() const { return may_match_nothing_; }

 private:
  friend class ExpressionCompiler;
  friend class ExpressionRun;

  enum class Op : uint8_t {
    kSet,        // one character of the set
    kRun,        // characters of the set, as many as lead to a match
    kRunAtomic,  // all characters of the set
    kSplit,      // to `a`, and when that fails to `b`
    kJump,       // to `a`
    kLook,       // the body after it must match (or not); goes on at `a`
    kAtomic,     // the body after it, then `a`
    kEnd,        // of a body or of the whole
  };
  struct Instruction {
    Op op = Op::kEnd;
    bool negative = false;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t set = 0;
    uint32_t memo = 0;  // of kRun and kSplit: which row of the memory of failures
  };
  struct KindRange {
    char32_t last;
    uint8_t kind;
  };

  Status group_characters(const std::vector<CodePointSet>& sets);
  uint8_t kind_of(char32_t c) const;

  std::string where_;  // names it in errors, the text included
  bool may_match_nothing_ = false;
  std::vector<Instruction> program_;
  uint32_t memos_ = 0;
  // No set tells two characters of a kind apart.
  std::vector<KindRange> kinds_;  // sorted, all code points
  std::array<uint8_t, 128> ascii_kinds_{};
  std::vector<std::bitset<256>> sets_;  // of kinds
};

}  // namespace specd
