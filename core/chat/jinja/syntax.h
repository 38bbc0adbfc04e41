// A template as a tree. The parser builds it; after that it is immutable.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/siphash.h"
#include "core/chat/jinja/builtins.h"
#include "core/chat/jinja/lexer.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

using NameId = int32_t;  // index of Syntax::names

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
enum class BinaryOp : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};
// Filters that apply another filter or a test to every item.
enum class EachFilter : uint8_t { kMap, kMapAttribute, kSelect, kReject, kSelectAttr, kRejectAttr };

struct Expression {
  enum class Kind : uint8_t {
    kConstant,    // constant
    kName,        // name
    kMember,      // name.word, only as a target of set
    kAttribute,   // args[0].word
    kItem,        // args[0][args[1]]
    kSlice,       // args[0][args[1]:args[2]:args[3]], null when omitted
    kCall,        // args[0](args[1..], keywords)
    kFilter,      // args[0] | filter(args[1..]) by parameter, null when omitted
    kEachFilter,  // args[0] | each; kMap: filter(args[1..]), kMapAttribute: args[1], default
                  // args[2]; select: test(args[1..]); selectattr: args[1], test(args[2..])
    kTest,        // args[0] is test(args[1..])
    kNot,
    kAnd,
    kOr,
    kNegate,
    kPlus,
    kBinary,       // args[0] binary args[1]
    kConcat,       // all args
    kCompare,      // args[0] compare[0] args[1] compare[1] args[2] ...
    kConditional,  // args[0] if args[1] else args[2], which may be null
    kList,
    kTuple,
    kDict,  // key, value, key, value, ...
  };
  explicit Expression(Kind k) : kind(k) {}

  Kind kind;
  size_t offset = 0;
  int depth = 1;
  Value constant;
  NameId name = -1;
  std::string word;
  std::vector<ExpressionPtr> args;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<CompareOp> compare;
  BinaryOp binary = BinaryOp::kAdd;
  EachFilter each = EachFilter::kMap;
  const FilterSpec* filter = nullptr;
  const TestSpec* test = nullptr;  // null in select: tests truth
};

struct Statement {
  enum class Kind : uint8_t {
    kData,         // data
    kPrint,        // value
    kIf,           // branches, otherwise
    kFor,          // target in value if test: body, otherwise
    kSet,          // target = value
    kSetBlock,     // target = body | value, which may be null
    kFilterBlock,  // body | value
    kMacro,        // name(parameters): body
    kGeneration,   // body
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr test;
    Body body;
  };
  struct Parameter {
    NameId name;
    ExpressionPtr fallback;  // may be null
  };
  explicit Statement(Kind k) : kind(k) {}

  Kind kind;
  size_t offset = 0;
  std::string data;
  ExpressionPtr value, target, test;
  Body body, otherwise;
  std::vector<Branch> branches;
  NameId name = -1;
  std::vector<Parameter> parameters;
};

struct Syntax {
  explicit Syntax(Source s) : source(std::move(s)) {}
  Source source;
  std::vector<std::string> names;
  std::unordered_map<std::string, NameId, KeyedHash, std::equal_to<>> name_ids;
  Body body;
};

// kDataLoss for malformed Jinja, kUnsupported for what cannot be rendered exactly; both with line
// and column.
Result<std::unique_ptr<const Syntax>> parse(std::string_view text, const std::string& where);

}  // namespace specd::jinja
