// What a quantization's configuration calls modules by: names, expressions and wildcards, each matched as its
// maker does.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/text/expression.h"
#include "core/text/step_budget.h"

namespace specd {

// Immutable; const calls are thread-safe.
class NamePattern {
 public:
  enum class Rule {
    kExact,
    // An expression that matches from the start of the name (Python's re.match). Read is the syntax of
    // core/text/expression_syntax.h, with \w, with ^ and \A at the start, and with $ and \Z.
    kExpression,
    // ModelOpt: shell wildcards (Python's fnmatch), or whole parts of the name: "model.layers.3.self_attn".
    kWildcard,
    // transformers' should_convert_module(): the end of a name, its whole first parts, or an expression for these.
    // Not as there: a dot without other signs of expressions is a dot, and an expression may not end behind one.
    kStartOrEnd,
    kSubstring,  // AWQ
  };

  // kUnsupported or kDataLoss with `where` for an expression that is not read. Both take steps from `budget`, and
  // fail with kUnsupported when it has too few.
  static Result<NamePattern> make(Rule rule, std::string text, StepBudget& budget,
                                  const std::string& where);
  // Whether a module has such a name, which is UTF-8. In an expression \w and \d are those of ASCII.
  Result<bool> matches(std::string_view name, StepBudget& budget) const;

  const std::string& text() const { return text_; }

 private:
  Rule rule_ = Rule::kExact;
  std::string text_;
  std::optional<Expression> expression_;
};

}  // namespace specd
