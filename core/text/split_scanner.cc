#include "core/text/split_scanner.h"

#include <cstdint>

#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace specd {

const std::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

CharClass class_of(char32_t c) {
  if (is_space(c)) return CharClass::kSpace;
  const Category category = category_of(c);
  if (is_letter(category)) return CharClass::kLetter;
  return is_number(category) ? CharClass::kNumber : CharClass::kOther;
}

// One character of the text. At the end: not present, kOther.
struct Char {
  size_t end = 0;
  char32_t code_point = 0;
  CharClass of = CharClass::kOther;
  bool present = false;
};

Char char_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {at, 0, CharClass::kOther, false};
  const Utf8Step step = utf8_step(text, at);
  return {at + step.bytes, step.code_point, class_of(step.code_point), true};
}

bool is_newline(const Char& c) {
  return c.present && (c.code_point == '\r' || c.code_point == '\n');
}

// The end of the run of characters of class `of` that starts at `at`.
size_t run_end(std::string_view text, size_t at, CharClass of) {
  for (Char c = char_at(text, at); c.present && c.of == of; c = char_at(text, at)) at = c.end;
  return at;
}

// The end of (?i:'s|'t|'re|'ve|'m|'ll|'d) when the apostrophe ends at `at`; 0 when nothing matches.
size_t contraction_end(std::string_view text, size_t at) {
  const auto lower = [](char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; };
  const Char first = char_at(text, at);
  if (!first.present) return 0;
  const char32_t a = lower(first.code_point);
  constexpr char32_t kLongS = 0x17F;  // folds to s
  if (a == 's' || a == kLongS || a == 't' || a == 'm' || a == 'd') return first.end;
  const Char second = char_at(text, first.end);
  if (!second.present) return 0;
  const char32_t b = lower(second.code_point);
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return second.end;
  return 0;
}

// The end of \s*[\r\n]+ | \s+(?!\S) | \s+ at the start of a run of white space; the first of the
// three only when `newlines` is set.
size_t space_end(std::string_view text, size_t begin, bool newlines) {
  size_t newline_end = 0;  // after the last newline of the run
  size_t last_begin = begin;
  size_t end = begin;
  for (Char c = char_at(text, end); c.present && c.of == CharClass::kSpace;
       c = char_at(text, end)) {
    last_begin = end;
    end = c.end;
    if (is_newline(c)) newline_end = end;
  }
  if (newlines && newline_end != 0) return newline_end;
  // Before a word, the last character of the run goes to the next piece, unless it is the only one.
  if (end == text.size() || last_begin == begin) return end;
  return last_begin;
}

// Llama 3's expression with \p{N}{1,digits_max}.
size_t llama3_like_end(std::string_view text, size_t begin, int digits_max) {
  const Char first = char_at(text, begin);
  if (first.code_point == '\'') {
    if (const size_t end = contraction_end(text, first.end); end != 0) return end;
  }
  if (first.of == CharClass::kLetter) return run_end(text, first.end, CharClass::kLetter);
  if (first.of == CharClass::kNumber) {
    size_t end = first.end;
    for (int i = 1; i < digits_max; ++i) {
      const Char c = char_at(text, end);
      if (!c.present || c.of != CharClass::kNumber) break;
      end = c.end;
    }
    return end;
  }
  const Char second = char_at(text, first.end);
  if (second.present && second.of == CharClass::kLetter && !is_newline(first)) {
    return run_end(text, second.end, CharClass::kLetter);
  }
  const bool space_then_other =
      first.code_point == ' ' && second.present && second.of == CharClass::kOther;
  if (first.of == CharClass::kOther || space_then_other) {
    size_t end = run_end(text, first.end, CharClass::kOther);
    for (Char c = char_at(text, end); is_newline(c); c = char_at(text, end)) end = c.end;
    return end;
  }
  return space_end(text, begin, true);
}

}  // namespace

size_t llama3_piece_end(std::string_view text, size_t begin) {
  return llama3_like_end(text, begin, 3);
}

size_t qwen2_piece_end(std::string_view text, size_t begin) {
  return llama3_like_end(text, begin, 1);
}

size_t gpt2_piece_end(std::string_view text, size_t begin) {
  static constexpr std::string_view kContractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const std::string_view word : kContractions) {
    if (text.compare(begin, word.size(), word) == 0) return begin + word.size();
  }
  const Char first = char_at(text, begin);
  const Char second = char_at(text, first.end);
  const bool led_by_space =
      first.code_point == ' ' && second.present && second.of != CharClass::kSpace;
  const Char& start = led_by_space ? second : first;
  if (start.of != CharClass::kSpace) return run_end(text, start.end, start.of);
  return space_end(text, begin, false);
}

PieceEnd find_scanner(std::string_view expression) {
  if (expression == kLlama3Expression) return llama3_piece_end;
  if (expression == kQwen2Expression) return qwen2_piece_end;
  if (expression == kGpt2Expression) return gpt2_piece_end;
  return nullptr;
}

}  // namespace specd
