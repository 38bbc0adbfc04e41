// The parser's state. Call parse() of syntax.h instead of using this class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja/syntax.h"

namespace specd::jinja {

// For a macro and for a call. Each argument is compared with all others.
inline constexpr size_t kArgumentsMax = 256;

class Parser {
 public:
  Parser(Syntax& syntax, std::vector<Token> tokens) : syntax_(syntax), tokens_(std::move(tokens)) {}
  Result<Body> parse_template();

 private:
  using Words = std::vector<std::string_view>;
  // Counts one level of nesting while it exists.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };
  // Where the parser is, for statements and names that are allowed only in some places.
  struct Place {
    bool in_loop = false;   // break and continue are allowed
    bool in_macro = false;  // the names caller, varargs and kwargs are special
    bool at_top = true;     // macros may be defined
  };

  // statements (parser.cc)
  Result<Body> parse_body(const Words& ends);
  Result<Body> parse_block(const Words& ends);  // "%}" and the body, up to the end word
  Result<StatementPtr> parse_statement();
  Result<StatementPtr> parse_if();
  Result<StatementPtr> parse_for();
  Result<StatementPtr> parse_set();
  Result<StatementPtr> parse_macro();
  Result<StatementPtr> parse_filter_block();
  Result<StatementPtr> parse_generation();
  Result<ExpressionPtr> parse_target(bool with_members, std::string_view end);
  Result<ExpressionPtr> parse_target_item(bool with_members);

  // expressions (parser_expressions.cc)
  Result<ExpressionPtr> parse_tuple(bool with_conditional, bool in_parentheses);
  Result<ExpressionPtr> parse_expression(bool with_conditional = true);
  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_compare();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concat();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_power();
  Result<ExpressionPtr> parse_unary(bool with_filters);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();
  Result<ExpressionPtr> parse_postfix(ExpressionPtr value);
  Result<ExpressionPtr> parse_filters(ExpressionPtr value, bool with_tests);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr value);

  // calls, filters and tests (parser_calls.cc)
  Result<ExpressionPtr> parse_call(ExpressionPtr callee);
  Result<ExpressionPtr> parse_filter(ExpressionPtr value);
  Result<ExpressionPtr> parse_test(ExpressionPtr value);
  struct Call {
    std::vector<ExpressionPtr> arguments;
    std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  };
  Result<Call> parse_arguments();
  // Puts the arguments of a filter in the order of its parameters, after args[0].
  Status bind(const FilterSpec& filter, Call call, Expression& into);
  Result<ExpressionPtr> bind_each(EachFilter each, Call call, ExpressionPtr made);
  Result<const TestSpec*> test_named(const std::string& name, size_t offset);

  // Returns the node after checking its depth against the limit.
  Result<ExpressionPtr> done(ExpressionPtr made);
  ExpressionPtr make(Expression::Kind kind, size_t offset) const;
  ExpressionPtr binary_node(BinaryOp op, size_t offset, ExpressionPtr left, ExpressionPtr right);

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is(std::string_view op) const {
    return now().type == Token::Type::kOperator && now().text == op;
  }
  bool is_name(std::string_view word) const {
    return now().type == Token::Type::kName && now().text == word;
  }
  bool skip(std::string_view op) { return is(op) && (next(), true); }
  bool skip_name(std::string_view word) { return is_name(word) && (next(), true); }
  Status expect(std::string_view op);
  Status expect_type(Token::Type type, const char* what);
  Result<std::string> expect_name(const char* what);
  std::string found() const;
  Status error(const std::string& what) const { return syntax_.source.error(now().offset, what); }
  Status unsupported(size_t offset, const std::string& what) const {
    return syntax_.source.unsupported(offset, what);
  }
  Status check_nesting() const;
  NameId intern(const std::string& name);

  Syntax& syntax_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  Place place_;
};

}  // namespace specd::jinja
