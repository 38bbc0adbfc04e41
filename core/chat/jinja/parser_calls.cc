// Parses calls, filters and tests: names with arguments.
#include <algorithm>
#include <iterator>

#include "core/base/quote.h"
#include "core/chat/jinja/parser.h"

namespace specd::jinja {

using ExprKind = Expression::Kind;

Result<Parser::Call> Parser::parse_arguments() {
  Call call;
  SPECD_OK_OR_RETURN(expect("("));
  bool is_first = true;
  while (!is(")")) {
    if (!is_first) SPECD_OK_OR_RETURN(expect(","));
    is_first = false;
    if (is(")")) break;
    if (call.keywords.size() + call.arguments.size() == kArgumentsMax)
      return error("more than 256 arguments");
    if (is("*") || is("**")) {
      return unsupported(now().offset, "arguments from a list or a mapping are not supported");
    }
    if (now().type == Token::Type::kName && ahead().type == Token::Type::kOperator &&
        ahead().text == "=") {
      const std::string name = now().text;
      for (const auto& [other, value] : call.keywords) {
        if (other == name) return error("the argument " + quote(name, 40) + " is given twice");
      }
      next();
      next();
      SPECD_TRY(ExpressionPtr value, parse_expression());
      call.keywords.emplace_back(name, std::move(value));
      continue;
    }
    if (!call.keywords.empty()) return error("an argument without a name follows one with a name");
    SPECD_TRY(ExpressionPtr value, parse_expression());
    call.arguments.push_back(std::move(value));
  }
  next();
  return call;
}

Result<ExpressionPtr> Parser::parse_call(ExpressionPtr callee) {
  if (callee->kind == ExprKind::kAttribute && !is_method_name(callee->word)) {
    return unsupported(callee->offset, "the method '" + callee->word + "' is not supported");
  }
  ExpressionPtr made = make(ExprKind::kCall, now().offset);
  SPECD_TRY(Call call, parse_arguments());
  made->args.push_back(std::move(callee));
  std::move(call.arguments.begin(), call.arguments.end(), std::back_inserter(made->args));
  made->keywords = std::move(call.keywords);
  return done(std::move(made));
}

Status Parser::bind(const FilterSpec& filter, Call call, Expression& into) {
  const std::string name(filter.name);
  if (call.arguments.size() > filter.parameters.size()) {
    return error("the filter '" + name + "' takes at most " +
                 std::to_string(filter.parameters.size()) + " arguments");
  }
  const size_t base = into.args.size();
  std::move(call.arguments.begin(), call.arguments.end(), std::back_inserter(into.args));
  into.args.resize(base + filter.parameters.size());
  for (auto& [keyword, value] : call.keywords) {
    const auto found =
        std::find(filter.parameters.begin(), filter.parameters.end(), std::string_view(keyword));
    if (found == filter.parameters.end()) {
      return error("the filter '" + name + "' has no argument '" + keyword + "'");
    }
    ExpressionPtr& slot = into.args[base + static_cast<size_t>(found - filter.parameters.begin())];
    if (slot != nullptr) return error("the argument '" + keyword + "' is given twice");
    slot = std::move(value);
  }
  for (size_t i = 0; i < filter.required; ++i) {
    if (into.args[base + i] == nullptr) {
      return error("the filter '" + name + "' needs its argument '" +
                   std::string(filter.parameters[i]) + "'");
    }
  }
  into.filter = &filter;
  return Status();
}

Result<const TestSpec*> Parser::test_named(const std::string& name, size_t offset) {
  const TestSpec* const test = find_test(name);
  if (test == nullptr)
    return unsupported(offset, "the test " + quote(name, 40) + " is not supported");
  return test;
}

Result<ExpressionPtr> Parser::bind_each(EachFilter each, Call call, ExpressionPtr made) {
  made->kind = ExprKind::kEachFilter;
  made->each = each;
  auto& arguments = call.arguments;
  // The name of the filter or test must be known when parsing.
  const auto take_name = [&](size_t at) -> Result<std::string> {
    const Expression& name = *arguments[at];
    if (name.kind != ExprKind::kConstant || !name.constant.is_string()) {
      return unsupported(name.offset, "a filter or test whose name is computed is not supported");
    }
    std::string word = name.constant.bytes();
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
    return word;
  };
  if (each == EachFilter::kMap) {
    if (!arguments.empty()) {
      const size_t offset = arguments.front()->offset;
      SPECD_TRY(const std::string name, take_name(0));
      const FilterSpec* const filter = find_filter(name);
      if (filter == nullptr) {
        return unsupported(offset, "the filter " + quote(name, 40) + " is not supported in map");
      }
      SPECD_OK_OR_RETURN(bind(*filter, std::move(call), *made));
      return done(std::move(made));
    }
    made->each = EachFilter::kMapAttribute;
    made->args.resize(3);
    for (auto& [keyword, value] : call.keywords) {
      if (keyword != "attribute" && keyword != "default") {
        return error("the filter 'map' has no argument '" + keyword + "'");
      }
      made->args[keyword == "attribute" ? 1 : 2] = std::move(value);
    }
    if (made->args[1] == nullptr) return error("the filter 'map' needs a filter or an attribute");
    return done(std::move(made));
  }
  if (!call.keywords.empty()) {
    return unsupported(made->offset, "named arguments are not supported here");
  }
  const bool by_attribute = each == EachFilter::kSelectAttr || each == EachFilter::kRejectAttr;
  if (by_attribute && arguments.empty()) return error("expected the name of an attribute");
  const size_t at = by_attribute ? 1 : 0;
  if (arguments.size() > at) {
    const size_t offset = arguments[at]->offset;
    SPECD_TRY(const std::string name, take_name(at));
    SPECD_TRY(made->test, test_named(name, offset));
    if (arguments.size() - at != made->test->arguments) {
      return error("the test '" + name + "' takes " + std::to_string(made->test->arguments) +
                   " arguments");
    }
  }
  std::move(arguments.begin(), arguments.end(), std::back_inserter(made->args));
  return done(std::move(made));
}

// `value` is null in a filter block, where the body is the input.
Result<ExpressionPtr> Parser::parse_filter(ExpressionPtr value) {
  ExpressionPtr made = make(ExprKind::kFilter, now().offset);
  const size_t offset = now().offset;
  SPECD_TRY(const std::string name, expect_name("the name of a filter"));
  Call call;
  if (is("(")) {
    SPECD_TRY(call, parse_arguments());
  }
  made->args.push_back(std::move(value));
  constexpr std::pair<std::string_view, EachFilter> kEach[] = {
      {"map", EachFilter::kMap},
      {"select", EachFilter::kSelect},
      {"reject", EachFilter::kReject},
      {"selectattr", EachFilter::kSelectAttr},
      {"rejectattr", EachFilter::kRejectAttr}};
  for (const auto& [word, each] : kEach) {
    if (name == word) return bind_each(each, std::move(call), std::move(made));
  }
  const FilterSpec* const filter = find_filter(name);
  if (filter == nullptr) {
    return unsupported(offset, "the filter " + quote(name, 40) + " is not supported");
  }
  SPECD_OK_OR_RETURN(bind(*filter, std::move(call), *made));
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_test(ExpressionPtr value) {
  const bool is_negated = skip_name("not");
  ExpressionPtr made = make(ExprKind::kTest, now().offset);
  const size_t offset = now().offset;
  SPECD_TRY(const std::string name, expect_name("the name of a test"));
  SPECD_TRY(made->test, test_named(name, offset));
  made->args.push_back(std::move(value));
  const auto& token = now();
  const bool has_argument = (token.type == Token::Type::kName && token.text != "else" &&
                             token.text != "or" && token.text != "and") ||
                            token.type == Token::Type::kString ||
                            token.type == Token::Type::kInteger ||
                            token.type == Token::Type::kFloat || is("[") || is("{");
  if (is("(")) {
    SPECD_TRY(Call call, parse_arguments());
    if (!call.keywords.empty()) {
      return unsupported(offset, "named arguments of a test are not supported");
    }
    std::move(call.arguments.begin(), call.arguments.end(), std::back_inserter(made->args));
  } else if (has_argument) {
    if (is_name("is")) return error("tests cannot be chained with 'is'");
    SPECD_TRY(ExpressionPtr argument, parse_primary());
    SPECD_TRY(argument, parse_postfix(std::move(argument)));
    made->args.push_back(std::move(argument));
  }
  if (made->args.size() - 1 != made->test->arguments) {
    return syntax_.source.error(
        offset, "the test '" + name + "' takes " + std::to_string(made->test->arguments) +
                    " arguments, found " + std::to_string(made->args.size() - 1));
  }
  SPECD_TRY(made, done(std::move(made)));
  if (!is_negated) return made;
  ExpressionPtr negated = make(ExprKind::kNot, offset);
  negated->args.push_back(std::move(made));
  return done(std::move(negated));
}

}  // namespace specd::jinja
