// Finds the matches of a regular expression from a tokenizer.json as Oniguruma does: the leftmost
// match, trying alternatives in order. Time and memory are bounded: the matcher never retries at a
// place what failed there before, and a budget of steps limits the rest. README.md says why
// Oniguruma itself is not used.
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

  // Appends all matches in order. REQUIRES well-formed UTF-8. kUnsupported, naming the expression
  // and the byte, when it takes more steps than `budget` has (lookaheads whose match ends far
  // away).
  Status find_all(std::string_view text, StepBudget& budget, std::vector<Match>& matches) const;

  bool may_match_nothing() const { return may_match_nothing_; }

 private:
  friend class ExpressionCompiler;
  friend class ExpressionRun;

  enum class Op : uint8_t {
    kSet,        // one character of the set
    kRun,        // as many characters of the set as possible; fewer when the rest fails
    kRunAtomic,  // all characters of the set that follow, never fewer
    kSplit,      // go to `a`; when that fails, to `b`
    kJump,       // go to `a`
    kLook,       // the body that follows must match (or not); go to `a`
    kAtomic,     // match the body that follows once, then go to `a`
    kEnd,        // end of a body or of the program
  };
  struct Instruction {
    Op op = Op::kEnd;
    bool negative = false;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t set = 0;
    uint32_t memo = 0;  // of kRun and kSplit: the row in the table of failures
  };
  struct KindRange {
    char32_t last;
    uint8_t kind;
  };

  Status group_characters(const std::vector<CodePointSet>& sets);
  uint8_t kind_of(char32_t c) const;

  std::string where_;  // "expression '...'", for errors
  bool may_match_nothing_ = false;
  std::vector<Instruction> program_;
  uint32_t memos_ = 0;
  // Two characters have one kind when every set has both or neither.
  std::vector<KindRange> kinds_;  // sorted, all code points
  std::array<uint8_t, 128> ascii_kinds_{};
  std::vector<std::bitset<256>> sets_;  // the kinds in each set
};

}  // namespace specd
