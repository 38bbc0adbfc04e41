// What a tokenizer file searches for in a text: a fixed string, an expression, or numeric
// characters.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/text/expression.h"
#include "core/text/split_scanner.h"

namespace specd {

// Immutable; const calls are thread-safe.
class Pattern {
 public:
  struct Part {
    size_t begin = 0;  // byte offsets
    size_t end = 0;
    bool is_match = false;
  };

  static Pattern literal(std::string text);  // REQUIRES a non-empty text
  static Pattern scanner(PieceEnd piece_end);
  static Pattern numeric();  // matches one character that is_numeric()
  // Reads {"String": ..} or {"Regex": ..}. Known expressions get their scanner.
  static Result<Pattern> from_json(const Json& pattern, const std::string& where);

  // Replaces `parts` by the matches and the text between them, in order and without gaps. An empty
  // match gives an empty part. REQUIRES well-formed UTF-8. kUnsupported when it takes more steps
  // than `budget` has.
  Status cut(std::string_view text, StepBudget& budget, std::vector<Part>& parts) const;

  bool may_match_nothing() const {
    return expression_ != nullptr && expression_->may_match_nothing();
  }

 private:
  // Exactly one of these; none is numeric().
  std::string literal_;
  PieceEnd piece_end_ = nullptr;
  std::shared_ptr<const Expression> expression_;
};

}  // namespace specd
