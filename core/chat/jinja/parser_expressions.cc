#include <algorithm>
#include <iterator>

#include "core/base/quote.h"
#include "core/chat/jinja/parser.h"

namespace specd::jinja {

using ExprKind = Expression::Kind;

ExpressionPtr Parser::make(ExprKind kind, size_t offset) const {
  auto made = std::make_unique<Expression>(kind);
  made->offset = offset;
  return made;
}

Result<ExpressionPtr> Parser::done(ExpressionPtr made) {
  int depth = 0;
  for (const ExpressionPtr& arg : made->args) {
    if (arg != nullptr) depth = std::max(depth, arg->depth);
  }
  for (const auto& [name, value] : made->keywords) depth = std::max(depth, value->depth);
  made->depth = depth + 1;
  // A chain of operators is as deep as it is long, so count its depth.
  if (made->depth > Limits::kSyntaxDepth) {
    return unsupported(made->offset, "an expression of more than " +
                                         std::to_string(Limits::kSyntaxDepth) +
                                         " levels; split it with 'set'");
  }
  return made;
}

ExpressionPtr Parser::binary_node(BinaryOp op, size_t offset, ExpressionPtr left,
                                  ExpressionPtr right) {
  ExpressionPtr made = make(ExprKind::kBinary, offset);
  made->binary = op;
  made->args.push_back(std::move(left));
  made->args.push_back(std::move(right));
  return made;
}

Result<ExpressionPtr> Parser::parse_tuple(bool with_conditional, bool in_parentheses) {
  const size_t offset = now().offset;
  const auto at_end = [&] {
    return now().type == Token::Type::kPrintEnd || now().type == Token::Type::kBlockEnd || is(")");
  };
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!at_end()) {
    SPECD_TRY(ExpressionPtr item, parse_expression(with_conditional));
    items.push_back(std::move(item));
    if (!skip(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !in_parentheses) return error("expected an expression, found " + found());
  ExpressionPtr made = make(ExprKind::kTuple, offset);
  made->args = std::move(items);
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  SPECD_OK_OR_RETURN(check_nesting());
  if (!with_conditional) return parse_or();
  const size_t offset = now().offset;
  SPECD_TRY(ExpressionPtr value, parse_or());
  while (skip_name("if")) {
    ExpressionPtr made = make(ExprKind::kConditional, offset);
    made->args.push_back(std::move(value));
    SPECD_TRY(ExpressionPtr test, parse_or());
    made->args.push_back(std::move(test));
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      SPECD_TRY(otherwise, parse_expression());
    }
    made->args.push_back(std::move(otherwise));
    SPECD_TRY(value, done(std::move(made)));
  }
  return value;
}

Result<ExpressionPtr> Parser::parse_or() {
  SPECD_TRY(ExpressionPtr left, parse_and());
  while (is_name("or")) {
    ExpressionPtr made = make(ExprKind::kOr, now().offset);
    next();
    made->args.push_back(std::move(left));
    SPECD_TRY(ExpressionPtr right, parse_and());
    made->args.push_back(std::move(right));
    SPECD_TRY(left, done(std::move(made)));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_and() {
  SPECD_TRY(ExpressionPtr left, parse_not());
  while (is_name("and")) {
    ExpressionPtr made = make(ExprKind::kAnd, now().offset);
    next();
    made->args.push_back(std::move(left));
    SPECD_TRY(ExpressionPtr right, parse_not());
    made->args.push_back(std::move(right));
    SPECD_TRY(left, done(std::move(made)));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_not() {
  const size_t offset = now().offset;
  if (!skip_name("not")) return parse_compare();
  const Nesting nesting(*this);
  SPECD_OK_OR_RETURN(check_nesting());
  ExpressionPtr made = make(ExprKind::kNot, offset);
  SPECD_TRY(ExpressionPtr value, parse_not());
  made->args.push_back(std::move(value));
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_compare() {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
      {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  const size_t offset = now().offset;
  SPECD_TRY(ExpressionPtr first, parse_sum());
  ExpressionPtr made;
  while (true) {
    const auto* const op = std::find_if(std::begin(kOps), std::end(kOps),
                                        [&](const auto& each) { return is(each.first); });
    CompareOp found_op;
    if (op != std::end(kOps)) {
      found_op = op->second;
      next();
    } else if (skip_name("in")) {
      found_op = CompareOp::kIn;
    } else if (is_name("not") && ahead().type == Token::Type::kName && ahead().text == "in") {
      next();
      next();
      found_op = CompareOp::kNotIn;
    } else {
      break;
    }
    if (made == nullptr) {
      made = make(ExprKind::kCompare, offset);
      made->args.push_back(std::move(first));
    }
    SPECD_TRY(ExpressionPtr right, parse_sum());
    made->compare.push_back(found_op);
    made->args.push_back(std::move(right));
  }
  if (made == nullptr) return first;
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_sum() {
  SPECD_TRY(ExpressionPtr left, parse_concat());
  while (is("+") || is("-")) {
    const BinaryOp op = is("+") ? BinaryOp::kAdd : BinaryOp::kSubtract;
    const size_t offset = now().offset;
    next();
    SPECD_TRY(ExpressionPtr right, parse_concat());
    SPECD_TRY(left, done(binary_node(op, offset, std::move(left), std::move(right))));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_concat() {
  const size_t offset = now().offset;
  SPECD_TRY(ExpressionPtr first, parse_product());
  if (!is("~")) return first;
  ExpressionPtr made = make(ExprKind::kConcat, offset);
  made->args.push_back(std::move(first));
  while (skip("~")) {
    SPECD_TRY(ExpressionPtr part, parse_product());
    made->args.push_back(std::move(part));
  }
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_product() {
  constexpr std::pair<std::string_view, BinaryOp> kOps[] = {{"*", BinaryOp::kMultiply},
                                                            {"/", BinaryOp::kDivide},
                                                            {"//", BinaryOp::kFloorDivide},
                                                            {"%", BinaryOp::kModulo}};
  SPECD_TRY(ExpressionPtr left, parse_power());
  while (true) {
    const auto* const op = std::find_if(std::begin(kOps), std::end(kOps),
                                        [&](const auto& each) { return is(each.first); });
    if (op == std::end(kOps)) return left;
    const size_t offset = now().offset;
    next();
    SPECD_TRY(ExpressionPtr right, parse_power());
    SPECD_TRY(left, done(binary_node(op->second, offset, std::move(left), std::move(right))));
  }
}

Result<ExpressionPtr> Parser::parse_power() {
  SPECD_TRY(ExpressionPtr left, parse_unary(true));
  while (is("**")) {
    const size_t offset = now().offset;
    next();
    SPECD_TRY(ExpressionPtr right, parse_unary(true));
    SPECD_TRY(left, done(binary_node(BinaryOp::kPower, offset, std::move(left), std::move(right))));
  }
  return left;
}

Result<ExpressionPtr> Parser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  SPECD_OK_OR_RETURN(check_nesting());
  const size_t offset = now().offset;
  ExpressionPtr value;
  if (is("-") || is("+")) {
    value = make(is("-") ? ExprKind::kNegate : ExprKind::kPlus, offset);
    next();
    SPECD_TRY(ExpressionPtr inner, parse_unary(false));
    value->args.push_back(std::move(inner));
    SPECD_TRY(value, done(std::move(value)));
  } else {
    SPECD_TRY(value, parse_primary());
  }
  SPECD_TRY(value, parse_postfix(std::move(value)));
  if (with_filters) {
    SPECD_TRY(value, parse_filters(std::move(value), true));
  }
  return value;
}

Result<ExpressionPtr> Parser::parse_primary() {
  const size_t offset = now().offset;
  if (skip("(")) {
    SPECD_TRY(ExpressionPtr inner, parse_tuple(true, true));
    SPECD_OK_OR_RETURN(expect(")"));
    return inner;
  }
  if (is("[")) return parse_list();
  if (is("{")) return parse_dict();
  ExpressionPtr made = make(ExprKind::kConstant, offset);
  switch (now().type) {
    case Token::Type::kString: {
      std::string text;
      for (; now().type == Token::Type::kString; next()) text += now().text;
      made->constant = Value::string(text);
      return made;
    }
    case Token::Type::kInteger:
      made->constant = Value::integer(now().integer);
      next();
      return made;
    case Token::Type::kFloat:
      made->constant = Value::real(now().real);
      next();
      return made;
    case Token::Type::kName:
      break;
    default:
      return error("expected an expression, found " + found());
  }
  const std::string word = now().text;
  next();
  if (word == "true" || word == "True" || word == "false" || word == "False") {
    made->constant = Value::boolean(word == "true" || word == "True");
    return made;
  }
  if (word == "none" || word == "None") return made;
  constexpr std::string_view kJinja[] = {"self", "super", "lipsum", "cycler", "joiner", "dict"};
  constexpr std::string_view kOfMacros[] = {"caller", "varargs", "kwargs"};
  if (std::find(std::begin(kJinja), std::end(kJinja), word) != std::end(kJinja) ||
      (place_.in_macro &&
       std::find(std::begin(kOfMacros), std::end(kOfMacros), word) != std::end(kOfMacros))) {
    return unsupported(offset, "the name '" + word + "' is not supported");
  }
  made->kind = ExprKind::kName;
  made->name = intern(word);
  return made;
}

Result<ExpressionPtr> Parser::parse_list() {
  ExpressionPtr made = make(ExprKind::kList, now().offset);
  next();
  while (!is("]")) {
    if (!made->args.empty()) SPECD_OK_OR_RETURN(expect(","));
    if (is("]")) break;
    SPECD_TRY(ExpressionPtr item, parse_expression());
    made->args.push_back(std::move(item));
  }
  next();
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_dict() {
  ExpressionPtr made = make(ExprKind::kDict, now().offset);
  next();
  while (!is("}")) {
    if (!made->args.empty()) SPECD_OK_OR_RETURN(expect(","));
    if (is("}")) break;
    SPECD_TRY(ExpressionPtr key, parse_expression());
    SPECD_OK_OR_RETURN(expect(":"));
    SPECD_TRY(ExpressionPtr value, parse_expression());
    made->args.push_back(std::move(key));
    made->args.push_back(std::move(value));
  }
  next();
  return done(std::move(made));
}

Result<ExpressionPtr> Parser::parse_postfix(ExpressionPtr value) {
  while (is(".") || is("[") || is("(")) {
    SPECD_TRY(value, is("(") ? parse_call(std::move(value)) : parse_subscript(std::move(value)));
  }
  return value;
}

Result<ExpressionPtr> Parser::parse_filters(ExpressionPtr value, bool with_tests) {
  while (true) {
    if (skip("|")) {
      SPECD_TRY(value, parse_filter(std::move(value)));
    } else if (with_tests && skip_name("is")) {
      SPECD_TRY(value, parse_test(std::move(value)));
    } else if (with_tests && is("(")) {
      SPECD_TRY(value, parse_call(std::move(value)));
    } else {
      return value;
    }
  }
}

Result<ExpressionPtr> Parser::parse_subscript(ExpressionPtr value) {
  const size_t offset = now().offset;
  if (skip(".")) {
    if (now().type == Token::Type::kInteger) {
      ExpressionPtr made = make(ExprKind::kItem, offset);
      made->args.push_back(std::move(value));
      ExpressionPtr index = make(ExprKind::kConstant, now().offset);
      index->constant = Value::integer(now().integer);
      next();
      made->args.push_back(std::move(index));
      return done(std::move(made));
    }
    ExpressionPtr made = make(ExprKind::kAttribute, offset);
    SPECD_TRY(made->word, expect_name("the name of an attribute"));
    if (made->word.substr(0, 2) == "__") {
      return unsupported(offset, "the attribute " + quote(made->word, 40) + " is not supported");
    }
    made->args.push_back(std::move(value));
    return done(std::move(made));
  }
  next();  // [
  ExpressionPtr parts[3];
  bool is_slice = false;
  if (!is(":")) {
    SPECD_TRY(parts[0], parse_expression());
  }
  for (int i = 1; i < 3 && skip(":"); ++i) {
    is_slice = true;
    if (is("]") || is(":")) continue;
    SPECD_TRY(parts[i], parse_expression());
  }
  if (is(",")) return unsupported(now().offset, "an index of several parts is not supported");
  SPECD_OK_OR_RETURN(expect("]"));
  ExpressionPtr made = make(is_slice ? ExprKind::kSlice : ExprKind::kItem, offset);
  made->args.push_back(std::move(value));
  for (int i = 0; i < (is_slice ? 3 : 1); ++i) made->args.push_back(std::move(parts[i]));
  return done(std::move(made));
}

}  // namespace specd::jinja
