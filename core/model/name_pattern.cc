#include "core/model/name_pattern.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/quote.h"

namespace specd {
namespace {

using Rule = NamePattern::Rule;

// What a comparison, a search by an expression, and compiling one cost however short they are.
constexpr uint64_t kStepsOfMatch = 8, kStepsOfSearch = 64, kStepsOfExpression = 10'000;
constexpr uint64_t kStepsPerByte = 300;  // of an expression that is compiled

Status too_many_steps(const std::string& text) {
  return Status(Code::kUnsupported,
                "pattern " + quote(text) + ": all patterns together take too many steps");
}

// Rewrites what the parser of core/text refuses because other engines read it differently, and what has one
// meaning on a module's name.
Result<std::string> from_python(std::string_view text, const std::string& where) {
  constexpr std::string_view kEnd = "(?![\\s\\S])";
  // Modules' names are nearly always ASCII, so these need no table of Unicode.
  const auto set_of = [](char escape) -> std::string {
    return escape == 'w' ? "A-Za-z0-9_" : escape == 'd' ? "0-9" : "";
  };
  std::string out;
  bool in_set = false, at_start = true;   // at_start: nothing before it takes text
  std::vector<bool> open_at_start{true};  // of each open group, and of the whole
  const auto anchor_inside = [&](std::string_view anchor) {
    return Status(Code::kUnsupported, where + ": expression " + quote(text) + ": found " +
                                          quote(anchor) + " inside, supported: at the start");
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && i + 1 < text.size()) {
      const char next = text[++i];
      if (next == 'A' && !in_set) {
        if (!at_start) return anchor_inside("\\A");
        continue;
      }
      if (next == 'p' || next == 'P') {
        return Status(Code::kUnsupported, where + ": expression " + quote(text) +
                                              ": found '\\p', which Python does not know");
      }
      if (next == 'Z' && !in_set) {
        out += kEnd;
      } else if (const std::string set = set_of(next); !set.empty()) {
        out += in_set ? set : "[" + set + "]";
      } else {
        out += {c, next};
      }
      at_start = false;
    } else if (in_set) {
      in_set = c != ']';
      out += c;
    } else if (c == '^') {
      if (!at_start) return anchor_inside("^");
    } else if (c == '$') {
      out += kEnd;
    } else if (c == '(') {
      open_at_start.push_back(at_start);
      out += c;
      if (text.substr(i + 1, 1) == "?") out += text.substr(++i, 1);
      // The sign behind "(?" says what the group is.
      if (out.ends_with('?') && i + 1 < text.size()) out += text[++i];
    } else if (c == '|') {
      at_start = open_at_start.back();
      out += c;
    } else {
      if (c == ')' && open_at_start.size() > 1) open_at_start.pop_back();
      in_set = c == '[';
      at_start = false;
      out += c;
    }
  }
  return out;
}

// fnmatch: * ? [..] [!..], and everything else as it is. Goes back to the last star only, so it takes
// pattern times name steps at most, and counts them.
bool fits_wildcards(std::string_view pattern, std::string_view name, uint64_t& steps) {
  const auto takes = [&](size_t& p, char c) {
    const size_t begin = p++;
    if (pattern[begin] == '?') return true;
    if (pattern[begin] != '[') return pattern[begin] == c;
    size_t at = begin + 1;
    const bool negative = at < pattern.size() && pattern[at] == '!';
    if (negative) ++at;
    const size_t end = pattern.find(']', at + 1);
    steps += std::min(end, pattern.size()) - begin;
    if (end == std::string_view::npos) return c == '[';  // no set
    bool inside = false;
    while (at < end) {
      const bool range = at + 2 < end && pattern[at + 1] == '-';
      inside = inside || (range ? pattern[at] <= c && c <= pattern[at + 2] : pattern[at] == c);
      at += range ? 3 : 1;
    }
    p = end + 1;
    return inside != negative;
  };
  size_t p = 0, n = 0, star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    ++steps;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    size_t next = p;
    if (p < pattern.size() && takes(next, name[n])) {
      p = next;
      ++n;
      continue;
    }
    if (star == std::string_view::npos) return false;
    p = star + 1;
    n = ++star_name;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Whether `text` is whole parts of the name: no letters of the parts before and behind it.
bool is_parts(std::string_view text, std::string_view name) {
  for (size_t at = name.find(text); at != std::string_view::npos; at = name.find(text, at + 1)) {
    const size_t end = at + text.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

}  // namespace

Result<NamePattern> NamePattern::make(Rule rule, std::string text, StepBudget& budget,
                                      const std::string& where) {
  NamePattern made;
  made.rule_ = rule;
  std::string expression;
  if (rule == Rule::kExpression) expression = text;
  if (rule == Rule::kStartOrEnd && text.find_first_of("*+?()[]{}|^$\\") != std::string::npos)
    expression = "(?:" + text + ")(?=\\.|$)";
  made.text_ = std::move(text);
  if (rule != Rule::kExpression && expression.empty()) return made;
  if (!budget.take(kStepsOfExpression + kStepsPerByte * expression.size()))
    return too_many_steps(made.text_).with_context(where);
  SPECD_TRY(expression, from_python(expression, where));
  SPECD_TRY(made.expression_, Expression::compile(expression, where));
  return made;
}

Result<bool> NamePattern::matches(std::string_view name, StepBudget& budget) const {
  uint64_t steps = expression_.has_value() ? kStepsOfSearch : kStepsOfMatch;
  bool fits = false;
  if (rule_ == Rule::kWildcard) fits = fits_wildcards(text_, name, steps);
  if (rule_ == Rule::kSubstring) steps += name.size();
  if (!budget.take(steps)) return too_many_steps(text_);
  if (expression_.has_value()) {
    std::vector<Expression::Match> matches;
    SPECD_OK_OR_RETURN(expression_->find_all(name, budget, matches));
    if (!matches.empty() && matches.front().begin == 0) return true;
  }
  switch (rule_) {
    case Rule::kExact:
      return name == text_;
    case Rule::kExpression:
      return false;
    case Rule::kWildcard:
      return fits || is_parts(text_, name);
    case Rule::kStartOrEnd:
      return name.ends_with(text_) ||
             (name.starts_with(text_) && (text_.ends_with('.') || name[text_.size()] == '.'));
    case Rule::kSubstring:
      return name.find(text_) != std::string_view::npos;
  }
  return false;
}

}  // namespace specd
