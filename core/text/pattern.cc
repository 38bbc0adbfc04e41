#include "core/text/pattern.h"

#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace specd {
namespace {

// In the worst case, a search takes this many steps per byte.
constexpr size_t kLiteralBytesMax = 256;
constexpr uint64_t kStepsOfCut = 3;   // per piece, however short
constexpr uint64_t kStepsOfWalk = 8;  // per byte, where characters are classified

// Takes matches in order and writes them to `parts` together with the text between them.
class PartList {
 public:
  explicit PartList(std::vector<Pattern::Part>& parts) : parts_(parts) { parts_.clear(); }

  void match(size_t begin, size_t end) {
    if (end_ != begin) parts_.push_back({end_, begin, false});
    parts_.push_back({begin, end, true});
    end_ = end;
  }
  void finish(size_t text_end) {
    if (end_ != text_end || text_end == 0) parts_.push_back({end_, text_end, false});
  }

 private:
  std::vector<Pattern::Part>& parts_;
  size_t end_ = 0;
};

}  // namespace

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::scanner(PieceEnd piece_end) {
  Pattern pattern;
  pattern.piece_end_ = piece_end;
  return pattern;
}

Pattern Pattern::numeric() { return Pattern(); }

Result<Pattern> Pattern::from_json(const Json& pattern, const std::string& where) {
  const bool one_key = pattern.is_object() && pattern.size() == 1;
  const std::string kind = one_key ? pattern.begin().key() : "";
  if ((kind != "String" && kind != "Regex") || !pattern.begin().value().is_string()) {
    return Status(Code::kDataLoss,
                  where + ": expected {\"String\": text} or {\"Regex\": text}, found " +
                      quote(pattern.dump(-1, ' ', true)));
  }
  const std::string& text = pattern.begin().value().get_ref<const std::string&>();
  if (text.empty()) {
    return Status(Code::kUnsupported,
                  where + "." + kind + ": is empty, and would match everywhere");
  }
  if (kind == "String" && text.size() > kLiteralBytesMax) {
    return Status(Code::kUnsupported, where + ".String: " + std::to_string(text.size()) +
                                          " bytes, supported: at most " +
                                          std::to_string(kLiteralBytesMax));
  }
  if (kind == "String") return literal(text);
  if (const PieceEnd piece_end = find_scanner(text)) return scanner(piece_end);
  SPECD_TRY(Expression expression, Expression::compile(text, where + ".Regex"));
  Pattern made;
  made.expression_ = std::make_shared<const Expression>(std::move(expression));
  return made;
}

Status Pattern::cut(std::string_view text, StepBudget& budget, std::vector<Part>& parts) const {
  // Expressions count their own steps. A long string costs more, since candidates are compared
  // again and again.
  const uint64_t steps = !literal_.empty()        ? 1 + literal_.size() / 16
                         : expression_ != nullptr ? 1
                                                  : kStepsOfWalk;
  SPECD_OK_OR_RETURN(take_steps(kStepsOfCut + text.size() * steps, budget));
  PartList list(parts);
  if (text.empty()) {
    list.finish(0);
    return Status();
  }
  if (!literal_.empty()) {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      list.match(at, at + literal_.size());
    }
  } else if (piece_end_ != nullptr) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = piece_end_(text, at);
      list.match(at, end);
      at = end;
    }
  } else if (expression_ != nullptr) {
    std::vector<Expression::Match> matches;
    SPECD_OK_OR_RETURN(expression_->find_all(text, budget, matches));
    for (const Expression::Match& match : matches) list.match(match.begin, match.end);
  } else {
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(text, at);
      if (is_numeric(step.code_point)) list.match(at, at + step.bytes);
      at += step.bytes;
    }
  }
  list.finish(text.size());
  return Status();
}

}  // namespace specd
