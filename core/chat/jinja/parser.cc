#include "core/chat/jinja/parser.h"

#include <algorithm>
#include <iterator>

#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd::jinja {

Result<std::unique_ptr<const Syntax>> parse(std::string_view text, const std::string& where) {
  if (text.size() > Limits::kTemplateBytes) {
    return Status(Code::kUnsupported, where + ": " + std::to_string(text.size()) +
                                          " bytes, expected a template of at most " +
                                          std::to_string(Limits::kTemplateBytes));
  }
  if (const size_t bad = utf8_error_offset(text); bad != std::string_view::npos) {
    return Status(Code::kDataLoss, where + ": not UTF-8 at byte " + std::to_string(bad));
  }
  auto syntax = std::make_unique<Syntax>(Source(text, where));
  SPECD_TRY(std::vector<Token> tokens, tokenize(syntax->source));
  SPECD_TRY(syntax->body, Parser(*syntax, std::move(tokens)).parse_template());
  return std::unique_ptr<const Syntax>(std::move(syntax));
}

Result<Body> Parser::parse_template() { return parse_body({}); }

std::string Parser::found() const {
  switch (now().type) {
    case Token::Type::kEnd:
      return "the end of the template";
    case Token::Type::kPrintEnd:
      return "'}}'";
    case Token::Type::kBlockEnd:
      return "'%}'";
    case Token::Type::kString:
      return "the string " + quote(now().text, 40);
    default:
      return quote(now().text, 40);
  }
}

Status Parser::expect(std::string_view op) {
  if (skip(op)) return Status();
  return error("expected '" + std::string(op) + "', found " + found());
}
Status Parser::expect_type(Token::Type type, const char* what) {
  if (now().type != type) return error(std::string("expected ") + what + ", found " + found());
  next();
  return Status();
}
Result<std::string> Parser::expect_name(const char* what) {
  if (now().type != Token::Type::kName) {
    return error(std::string("expected ") + what + ", found " + found());
  }
  std::string name = now().text;
  next();
  return name;
}

Status Parser::check_nesting() const {
  if (nesting_ <= Limits::kSyntaxDepth) return Status();
  return unsupported(now().offset,
                     "nested deeper than " + std::to_string(Limits::kSyntaxDepth) + " levels");
}

NameId Parser::intern(const std::string& name) {
  const auto [found, is_new] =
      syntax_.name_ids.try_emplace(name, static_cast<NameId>(syntax_.names.size()));
  if (is_new) syntax_.names.push_back(name);
  return found->second;
}

// Parses up to a block that begins with a word in `ends`, and leaves that word as the current
// token. With no ends, parses up to the end of the template.
Result<Body> Parser::parse_body(const Words& ends) {
  const Nesting nesting(*this);
  SPECD_OK_OR_RETURN(check_nesting());
  Body body;
  while (now().type != Token::Type::kEnd) {
    const size_t offset = now().offset;
    if (now().type == Token::Type::kData) {
      auto data = std::make_unique<Statement>(Statement::Kind::kData);
      data->offset = offset;
      data->data = now().text;
      body.push_back(std::move(data));
      next();
    } else if (now().type == Token::Type::kPrintBegin) {
      next();
      auto print = std::make_unique<Statement>(Statement::Kind::kPrint);
      print->offset = offset;
      SPECD_TRY(print->value, parse_tuple(true, false));
      SPECD_OK_OR_RETURN(expect_type(Token::Type::kPrintEnd, "'}}'"));
      body.push_back(std::move(print));
    } else {
      next();
      if (now().type == Token::Type::kName &&
          std::find(ends.begin(), ends.end(), now().text) != ends.end()) {
        return body;
      }
      SPECD_TRY(StatementPtr statement, parse_statement());
      statement->offset = offset;
      body.push_back(std::move(statement));
      SPECD_OK_OR_RETURN(expect_type(Token::Type::kBlockEnd, "'%}'"));
    }
  }
  if (ends.empty()) return body;
  std::string words;
  for (const std::string_view end : ends) {
    words += (words.empty() ? "'" : ", '") + std::string(end) + "'";
  }
  return error("the template ends; expected one of " + words);
}

Result<Body> Parser::parse_block(const Words& ends) {
  skip(":");
  SPECD_OK_OR_RETURN(expect_type(Token::Type::kBlockEnd, "'%}'"));
  return parse_body(ends);
}

Result<StatementPtr> Parser::parse_statement() {
  const size_t offset = now().offset;
  SPECD_TRY(const std::string word, expect_name("the name of a statement"));
  if (word == "if") return parse_if();
  if (word == "for") return parse_for();
  if (word == "set") return parse_set();
  if (word == "macro") return parse_macro();
  if (word == "filter") return parse_filter_block();
  if (word == "generation") return parse_generation();
  if (word == "break" || word == "continue") {
    if (!place_.in_loop) {
      return syntax_.source.error(offset, "'" + word + "' outside of a loop");
    }
    return std::make_unique<Statement>(word == "break" ? Statement::Kind::kBreak
                                                       : Statement::Kind::kContinue);
  }
  constexpr std::string_view kJinja[] = {"call",    "with",    "autoescape", "block",
                                         "extends", "include", "import",     "from",
                                         "print",   "do",      "trans",      "debug"};
  if (std::find(std::begin(kJinja), std::end(kJinja), word) != std::end(kJinja)) {
    return unsupported(offset, "the statement '" + word + "' is not supported");
  }
  return syntax_.source.error(offset, "unknown or misplaced statement " + quote(word, 40));
}

Result<StatementPtr> Parser::parse_if() {
  auto made = std::make_unique<Statement>(Statement::Kind::kIf);
  while (true) {
    Statement::Branch branch;
    SPECD_TRY(branch.test, parse_tuple(false, false));
    SPECD_TRY(branch.body, parse_block({"elif", "else", "endif"}));
    made->branches.push_back(std::move(branch));
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      SPECD_TRY(made->otherwise, parse_block({"endif"}));
    }
    next();
    return made;
  }
}

Result<StatementPtr> Parser::parse_for() {
  auto made = std::make_unique<Statement>(Statement::Kind::kFor);
  SPECD_TRY(made->target, parse_target(false, "in"));
  if (!skip_name("in")) return error("expected 'in', found " + found());
  SPECD_TRY(made->value, parse_tuple(false, false));
  if (skip_name("if")) {
    SPECD_TRY(made->test, parse_expression());
  }
  if (is_name("recursive")) return unsupported(now().offset, "'recursive' is not supported");
  const Place outside = place_;
  place_.in_loop = true;
  place_.at_top = false;
  SPECD_TRY(made->body, parse_block({"endfor", "else"}));
  place_.in_loop = outside.in_loop;
  if (skip_name("else")) {
    SPECD_TRY(made->otherwise, parse_block({"endfor"}));
  }
  place_ = outside;
  next();
  return made;
}

Result<StatementPtr> Parser::parse_set() {
  auto made = std::make_unique<Statement>(Statement::Kind::kSet);
  SPECD_TRY(made->target, parse_target(true, ""));
  if (skip("=")) {
    SPECD_TRY(made->value, parse_tuple(true, false));
    return made;
  }
  made->kind = Statement::Kind::kSetBlock;
  SPECD_TRY(made->value, parse_filters(nullptr, false));
  const Place outside = place_;
  place_.in_loop = place_.at_top = false;
  SPECD_TRY(made->body, parse_block({"endset"}));
  place_ = outside;
  next();
  return made;
}

Result<StatementPtr> Parser::parse_macro() {
  if (!place_.at_top) {
    return unsupported(now().offset, "a macro inside of a loop, macro or block is not supported");
  }
  auto made = std::make_unique<Statement>(Statement::Kind::kMacro);
  SPECD_TRY(const std::string name, expect_name("the name of the macro"));
  made->name = intern(name);
  SPECD_OK_OR_RETURN(expect("("));
  while (!is(")")) {
    if (!made->parameters.empty()) SPECD_OK_OR_RETURN(expect(","));
    SPECD_TRY(const std::string parameter, expect_name("a parameter"));
    if (parameter == "caller") {
      return unsupported(now().offset, "the parameter 'caller' is not supported");
    }
    if (made->parameters.size() == kArgumentsMax) return error("more than 256 parameters");
    Statement::Parameter added{.name = intern(parameter), .fallback = nullptr};
    for (const Statement::Parameter& other : made->parameters) {
      if (other.name == added.name)
        return error("the parameter " + quote(parameter, 40) + " is given twice");
    }
    if (skip("=")) {
      SPECD_TRY(added.fallback, parse_expression());
    } else if (!made->parameters.empty() && made->parameters.back().fallback != nullptr) {
      return error("a parameter without a default follows one with a default");
    }
    made->parameters.push_back(std::move(added));
  }
  next();
  const Place outside = place_;
  place_ = {.in_loop = false, .in_macro = true, .at_top = false};
  SPECD_TRY(made->body, parse_block({"endmacro"}));
  place_ = outside;
  next();
  return made;
}

Result<StatementPtr> Parser::parse_filter_block() {
  auto made = std::make_unique<Statement>(Statement::Kind::kFilterBlock);
  SPECD_TRY(ExpressionPtr first, parse_filter(nullptr));
  SPECD_TRY(made->value, parse_filters(std::move(first), false));
  const Place outside = place_;
  place_.in_loop = place_.at_top = false;
  SPECD_TRY(made->body, parse_block({"endfilter"}));
  place_ = outside;
  next();
  return made;
}

// transformers' {% generation %} marks what the model wrote; it prints its body.
Result<StatementPtr> Parser::parse_generation() {
  auto made = std::make_unique<Statement>(Statement::Kind::kGeneration);
  const Place outside = place_;
  place_ = {.in_loop = false, .in_macro = true, .at_top = false};
  SPECD_TRY(made->body, parse_block({"endgeneration"}));
  place_ = outside;
  next();
  return made;
}

Result<ExpressionPtr> Parser::parse_target_item(bool with_members) {
  const size_t offset = now().offset;
  if (skip("(")) {
    const Nesting nesting(*this);
    SPECD_OK_OR_RETURN(check_nesting());
    SPECD_TRY(ExpressionPtr inner, parse_target(with_members, ")"));
    SPECD_OK_OR_RETURN(expect(")"));
    return inner;
  }
  SPECD_TRY(const std::string name, expect_name("a name to assign to"));
  constexpr std::string_view kReserved[] = {"true",  "false", "none", "True",
                                            "False", "None",  "loop", "self"};
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
    return syntax_.source.error(offset, "'" + name + "' cannot be assigned to");
  }
  const bool is_member = with_members && skip(".");
  ExpressionPtr made =
      make(is_member ? Expression::Kind::kMember : Expression::Kind::kName, offset);
  made->name = intern(name);
  if (is_member) {
    SPECD_TRY(made->word, expect_name("an attribute of the namespace"));
  }
  return made;
}

Result<ExpressionPtr> Parser::parse_target(bool with_members, std::string_view end) {
  const size_t offset = now().offset;
  SPECD_TRY(ExpressionPtr first, parse_target_item(with_members));
  if (!is(",")) return first;
  ExpressionPtr tuple = make(Expression::Kind::kTuple, offset);
  tuple->args.push_back(std::move(first));
  while (skip(",")) {
    if (is_name(end) || is(end) || is("=")) break;
    SPECD_TRY(ExpressionPtr item, parse_target_item(with_members));
    tuple->args.push_back(std::move(item));
  }
  return done(std::move(tuple));
}

}  // namespace specd::jinja
