#include "core/chat/jinja/evaluator.h"

#include "core/base/quote.h"
#include "core/chat/jinja/lookup.h"
#include "core/chat/jinja/operators.h"

namespace specd::jinja {

using ExprKind = Expression::Kind;
using StmtKind = Statement::Kind;

Evaluator::Evaluator(const Syntax& syntax, const std::tm& now, Budget& budget)
    : syntax_(syntax), now_(now), budget_(budget), root_(syntax.names.size()) {
  constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"range", Function::kRange},
      {"namespace", Function::kNamespace},
      {"raise_exception", Function::kRaiseException},
      {"strftime_now", Function::kStrftimeNow}};
  for (const auto& [name, function] : kFunctions) {
    const NameId id = id_of(name);
    if (id >= 0) root_[static_cast<size_t>(id)] = Value::function(function);
  }
  loop_name_ = id_of("loop");
}

Evaluator::~Evaluator() {
  // Move the values out first: one of them may be the last reference to another namespace.
  std::vector<NamespaceObject::Values> held;
  for (const auto& each : namespaces_) held.push_back(std::move(each->values));
}

Result<MarkedText> Evaluator::run(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    const NameId id = id_of(name);
    if (id >= 0) root_[static_cast<size_t>(id)] = value;
  }
  MarkedText out;
  out_ = &out;
  SPECD_TRY(const Flow flow, run_body(syntax_.body, nullptr));
  (void)flow;
  return out;
}

Status Evaluator::at(size_t offset, const Status& status) {
  if (is_placed_) return status;
  is_placed_ = true;
  return status.with_context(syntax_.source.place(offset));
}

// ---- names -----------------------------------------------------------------------------------

NameId Evaluator::id_of(std::string_view name) const {
  const auto found = syntax_.name_ids.find(name);
  return found == syntax_.name_ids.end() ? -1 : found->second;
}

Value Evaluator::look_up(NameId name, const Scope* scope) const {
  for (; scope != nullptr; scope = scope->parent) {
    charge_search(*scope);
    for (const auto& [id, value] : scope->values) {
      if (id == name) return value;
    }
  }
  const std::optional<Value>& value = root_[static_cast<size_t>(name)];
  if (value.has_value()) return *value;
  budget_.bytes(kUndefinedBytes);
  return Value::undefined(quote(syntax_.names[static_cast<size_t>(name)], 80) + " is undefined");
}

void Evaluator::assign(NameId name, Value value, Scope* scope) {
  if (scope == nullptr) {
    root_[static_cast<size_t>(name)] = std::move(value);
    return;
  }
  charge_search(*scope);
  for (auto& [id, old] : scope->values) {
    if (id != name) continue;
    old = std::move(value);
    return;
  }
  scope->values.emplace_back(name, std::move(value));
}

Status Evaluator::assign_to(const Expression& target, const Value& value, Scope* scope) {
  if (target.kind == ExprKind::kName) {
    assign(target.name, value, scope);
    return Status();
  }
  if (target.kind == ExprKind::kMember) {
    const Value owner = look_up(target.name, scope);
    if (!owner.is(Kind::kNamespace)) {
      return at(target.offset,
                Status(Code::kInvalidArgument, "cannot assign attribute on non-namespace object"));
    }
    if (target.word[0] == '_') {
      return at(target.offset, Status(Code::kInvalidArgument,
                                      "a namespace cannot store " + quote(target.word, 40)));
    }
    if (value.depth() >= Limits::kValueDepth) {
      return at(target.offset, Status(Code::kInvalidArgument, "values nest too deeply"));
    }
    if (!budget_.bytes(target.word.size())) return at(target.offset, budget_.exceeded());
    owner.name_space().values[target.word] = value;
    return Status();
  }
  const Result<std::vector<Value>> items = items_of(value, budget_);
  if (!items.ok()) return at(target.offset, items.status());
  if (items.value().size() != target.args.size()) {
    return at(target.offset,
              Status(Code::kInvalidArgument, "expected " + std::to_string(target.args.size()) +
                                                 " values to unpack, found " +
                                                 std::to_string(items.value().size())));
  }
  for (size_t i = 0; i < target.args.size(); ++i) {
    SPECD_OK_OR_RETURN(assign_to(*target.args[i], items.value()[i], scope));
  }
  return Status();
}

// ---- statements ------------------------------------------------------------------------------

Status Evaluator::check_output() {
  if (out_->size() <= budget_.limits().output_bytes_max) return Status();
  return Status(
      Code::kInvalidArgument,
      "the rendered text exceeds " + std::to_string(budget_.limits().output_bytes_max) + " bytes");
}

Status Evaluator::print(const Value& value) {
  SPECD_OK_OR_RETURN(append_str(value, *out_, budget_));
  return check_output();
}

Result<Evaluator::Flow> Evaluator::run_body(const Body& body, Scope* scope) {
  for (const StatementPtr& statement : body) {
    if (!budget_.step()) return at(statement->offset, budget_.exceeded());
    SPECD_TRY(const Flow flow, run_statement(*statement, scope));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Result<Evaluator::Flow> Evaluator::run_statement(const Statement& statement, Scope* scope) {
  if (depth_ >= Limits::kEvaluationDepth) {
    return at(statement.offset, Status(Code::kInvalidArgument,
                                       "maximum recursion depth exceeded: macros call each other"));
  }
  struct Depth {
    int& depth;
    explicit Depth(int& d) : depth(d) { ++depth; }
    ~Depth() { --depth; }
  } const counted(depth_);
  switch (statement.kind) {
    case StmtKind::kData: {
      budget_.bytes(statement.data.size());
      out_->append(statement.data, false);
      const Status status = check_output();
      if (!status.ok()) return at(statement.offset, status);
      return Flow::kNormal;
    }
    case StmtKind::kPrint: {
      SPECD_TRY(const Value value, evaluate(*statement.value, scope));
      const Status status = print(value);
      if (!status.ok()) return at(statement.offset, status);
      return Flow::kNormal;
    }
    case StmtKind::kIf:
      return run_if(statement, scope);
    case StmtKind::kFor:
      return run_for(statement, scope);
    case StmtKind::kSet: {
      SPECD_TRY(const Value value, evaluate(*statement.value, scope));
      SPECD_OK_OR_RETURN(assign_to(*statement.target, value, scope));
      return Flow::kNormal;
    }
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      SPECD_OK_OR_RETURN(run_set_block(statement, scope));
      return Flow::kNormal;
    case StmtKind::kMacro:
      assign(statement.name, Value::macro(&statement), scope);
      return Flow::kNormal;
    case StmtKind::kGeneration: {
      Scope inner{.parent = scope};
      return run_body(statement.body, &inner);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Result<Evaluator::Flow> Evaluator::run_if(const Statement& statement, Scope* scope) {
  for (const Statement::Branch& branch : statement.branches) {
    SPECD_TRY(const Value test, evaluate(*branch.test, scope));
    if (truth(test)) return run_body(branch.body, scope);
  }
  return run_body(statement.otherwise, scope);
}

// Returns what the body prints instead of printing it.
Result<Value> Evaluator::captured(const Body& body, Scope& scope) {
  MarkedText text;
  MarkedText* const outside = std::exchange(out_, &text);
  const Result<Flow> flow = run_body(body, &scope);
  out_ = outside;
  if (!flow.ok()) return flow.status();
  return make_string(std::move(text), budget_);
}

Status Evaluator::run_set_block(const Statement& statement, Scope* scope) {
  Scope inner{.parent = scope};
  SPECD_TRY(Value value, captured(statement.body, inner));
  if (statement.value != nullptr) {
    const Value text = std::move(value);
    piped_ = &text;
    Result<Value> filtered = evaluate(*statement.value, &inner);
    piped_ = nullptr;
    if (!filtered.ok()) return filtered.status();
    value = std::move(filtered).value();
  }
  if (statement.kind == StmtKind::kSetBlock) return assign_to(*statement.target, value, scope);
  const Status status = print(value);
  return status.ok() ? status : at(statement.offset, status);
}

// ---- expressions -----------------------------------------------------------------------------

Result<Value> Evaluator::evaluate(const Expression& expression, Scope* scope) {
  if (!budget_.step()) return at(expression.offset, budget_.exceeded());
  if (depth_ >= Limits::kEvaluationDepth) {
    return at(
        expression.offset,
        Status(Code::kInvalidArgument, "maximum recursion depth exceeded: macros call each other"));
  }
  ++depth_;
  Result<Value> value = evaluate_kind(expression, scope);
  --depth_;
  if (!value.ok()) return at(expression.offset, value.status());
  return value;
}

Result<std::vector<Value>> Evaluator::evaluate_all(const Expression& expression, size_t first,
                                                   Scope* scope) {
  std::vector<Value> values;
  values.reserve(expression.args.size() - first);
  for (size_t i = first; i < expression.args.size(); ++i) {
    SPECD_TRY(Value value, evaluate(*expression.args[i], scope));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Value> Evaluator::evaluate_kind(const Expression& expression, Scope* scope) {
  const auto& args = expression.args;
  switch (expression.kind) {
    case ExprKind::kConstant:
      return expression.constant;
    case ExprKind::kName:
    case ExprKind::kMember:
      return look_up(expression.name, scope);
    case ExprKind::kAttribute: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      if (value.is(Kind::kLoop)) {
        return loop_attribute(value, expression.word);
      }
      return get_attribute(value, expression.word, budget_);
    }
    case ExprKind::kItem: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      SPECD_TRY(const Value key, evaluate(*args[1], scope));
      if (value.is(Kind::kLoop) && key.is_string()) {
        return loop_attribute(value, key.bytes());
      }
      return get_item(value, key, budget_);
    }
    case ExprKind::kSlice: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      Value bounds[3];
      for (size_t i = 0; i < 3; ++i) {
        if (args[i + 1] == nullptr) continue;
        SPECD_TRY(bounds[i], evaluate(*args[i + 1], scope));
      }
      return get_slice(value, bounds[0], bounds[1], bounds[2], budget_);
    }
    case ExprKind::kCall:
      return evaluate_call(expression, scope);
    case ExprKind::kFilter:
      return evaluate_filter(expression, scope);
    case ExprKind::kEachFilter:
      return evaluate_each(expression, scope);
    case ExprKind::kTest: {
      SPECD_TRY(const std::vector<Value> values, evaluate_all(expression, 0, scope));
      const Value* const argument = values.size() > 1 ? &values[1] : nullptr;
      SPECD_TRY(
          const bool result,
          expression.test->apply(values[0], Arguments(&argument, values.size() - 1), budget_));
      return Value::boolean(result);
    }
    case ExprKind::kNot: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      return Value::boolean(!truth(value));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      SPECD_TRY(Value left, evaluate(*args[0], scope));
      if (truth(left) == (expression.kind == ExprKind::kOr)) return left;
      return evaluate(*args[1], scope);
    }
    case ExprKind::kNegate: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      return negate(value);
    }
    case ExprKind::kPlus: {
      SPECD_TRY(const Value value, evaluate(*args[0], scope));
      return plus(value);
    }
    case ExprKind::kBinary: {
      SPECD_TRY(const Value left, evaluate(*args[0], scope));
      SPECD_TRY(const Value right, evaluate(*args[1], scope));
      return binary(expression.binary, left, right, budget_);
    }
    case ExprKind::kConcat: {
      MarkedText text;
      for (const ExpressionPtr& arg : args) {
        SPECD_TRY(const Value value, evaluate(*arg, scope));
        SPECD_OK_OR_RETURN(append_str(value, text, budget_));
      }
      return make_string(std::move(text), budget_);
    }
    case ExprKind::kCompare:
      return evaluate_compare(expression, scope);
    case ExprKind::kConditional: {
      SPECD_TRY(const Value test, evaluate(*args[1], scope));
      if (truth(test)) return evaluate(*args[0], scope);
      if (args[2] != nullptr) return evaluate(*args[2], scope);
      return Value::undefined("the inline if-expression evaluated to false and has no else");
    }
    case ExprKind::kList:
    case ExprKind::kTuple: {
      SPECD_TRY(std::vector<Value> items, evaluate_all(expression, 0, scope));
      return make_sequence(expression.kind == ExprKind::kList ? Kind::kList : Kind::kTuple,
                           std::move(items), budget_);
    }
    case ExprKind::kDict: {
      auto dict = std::make_shared<DictObject>();
      for (size_t i = 0; i < args.size(); i += 2) {
        SPECD_TRY(const Value key, evaluate(*args[i], scope));
        SPECD_TRY(Value value, evaluate(*args[i + 1], scope));
        SPECD_OK_OR_RETURN(dict->set(key, std::move(value), budget_));
      }
      return make_dict(std::move(dict), budget_);
    }
  }
  return Value::none();
}

Result<Value> Evaluator::evaluate_compare(const Expression& expression, Scope* scope) {
  SPECD_TRY(Value left, evaluate(*expression.args[0], scope));
  bool result = true;
  for (size_t i = 0; i < expression.compare.size() && result; ++i) {
    SPECD_TRY(Value right, evaluate(*expression.args[i + 1], scope));
    SPECD_TRY(result, compare(expression.compare[i], left, right, budget_));
    left = std::move(right);
  }
  return Value::boolean(result);
}

Result<Evaluator::Piped> Evaluator::evaluate_piped(const Expression& expression, Scope* scope) {
  Piped piped;
  if (expression.args[0] == nullptr) {
    piped.input = *piped_;
  } else {
    SPECD_TRY(piped.input, evaluate(*expression.args[0], scope));
  }
  piped.values.resize(expression.args.size());
  for (size_t i = 1; i < expression.args.size(); ++i) {
    if (expression.args[i] != nullptr) {
      SPECD_TRY(piped.values[i], evaluate(*expression.args[i], scope));
    }
    piped.arguments.push_back(expression.args[i] != nullptr ? &piped.values[i] : nullptr);
  }
  return piped;
}

Result<Value> Evaluator::evaluate_filter(const Expression& expression, Scope* scope) {
  SPECD_TRY(const Piped piped, evaluate_piped(expression, scope));
  return expression.filter->apply(piped.input, piped.arguments, budget_);
}

// map, select and the like return iterators. An error for an item is reported when it is read.
Result<Value> Evaluator::evaluate_each(const Expression& expression, Scope* scope) {
  SPECD_TRY(const Piped piped, evaluate_piped(expression, scope));
  const Value& input = piped.input;
  const std::vector<const Value*>& arguments = piped.arguments;
  if (!truth(input)) return make_iterator({}, Status());
  SPECD_TRY(const std::vector<Value> items, items_of(input, budget_));
  const EachFilter each = expression.each;
  const bool by_attribute = each == EachFilter::kSelectAttr || each == EachFilter::kRejectAttr;
  const bool rejects = each == EachFilter::kReject || each == EachFilter::kRejectAttr;
  std::vector<Value> out;
  for (const Value& item : items) {
    const auto apply = [&]() -> Status {
      SPECD_JINJA_STEPS(budget_, 1);
      if (item.is(Kind::kNamespace)) {
        return Status(Code::kUnsupported, "filters over namespaces are not supported");
      }
      if (each == EachFilter::kMap) {
        SPECD_TRY(Value mapped, expression.filter->apply(item, arguments, budget_));
        out.push_back(std::move(mapped));
        return Status();
      }
      if (each == EachFilter::kMapAttribute) {
        SPECD_TRY(Value mapped, get_path(item, *arguments[0], arguments[1], budget_));
        out.push_back(std::move(mapped));
        return Status();
      }
      Value tested = item;
      if (by_attribute) {
        SPECD_TRY(tested, get_path(item, *arguments[0], nullptr, budget_));
      }
      bool passes = truth(tested);
      if (expression.test != nullptr) {
        const auto rest = Arguments(arguments).subspan(by_attribute ? 1 : 0);
        SPECD_TRY(passes, expression.test->apply(tested, rest, budget_));
      }
      if (passes != rejects) out.push_back(item);
      return Status();
    };
    const Status status = apply();
    if (!status.ok()) return make_iterator(std::move(out), status);
  }
  SPECD_JINJA_BYTES(budget_, out.size() * sizeof(Value));
  return make_iterator(std::move(out), Status());
}

}  // namespace specd::jinja
