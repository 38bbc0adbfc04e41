// An expression and a text, with a zero byte between them: matches follow each other from the left
// and begin and end between characters.
#include "core/text/expression.h"

#include "core/base/utf8.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const std::string_view all = fuzz::text_of(data, size);
  const size_t zero = all.find('\0');
  const std::string_view pattern = all.substr(0, zero);
  std::string text(zero == std::string_view::npos ? "aA1 \n" : all.substr(zero + 1));
  if (utf8_error_offset(text) != std::string::npos) text = "it's 12 \u00e9\u4e16";
  const auto expression = Expression::compile(pattern, "pattern");
  fuzz::check_message(expression.status(), "pattern");
  if (!expression.ok()) return 0;
  std::vector<Expression::Match> matches;
  StepBudget budget(text.size());
  const Status status = expression.value().find_all(text, budget, matches);
  if (!status.ok()) return 0;
  size_t last = 0;
  const auto between = [&](size_t at) {
    return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
  };
  for (const Expression::Match& match : matches) {
    if (match.begin < last || match.end < match.begin || match.end > text.size())
      fuzz::fail("matches out of order");
    if (!between(match.begin) || !between(match.end)) fuzz::fail("a match inside a character");
    last = match.end;
  }
  return 0;
}
