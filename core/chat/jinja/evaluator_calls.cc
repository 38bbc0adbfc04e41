// The evaluator's loops, macros and functions.
#include <algorithm>
#include <array>

#include "core/base/quote.h"
#include "core/chat/jinja/evaluator.h"
#include "core/chat/jinja/operators.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {

// The variable `loop` of one for. Like jinja2's, it looks ahead only on demand, since the test of
// the loop may depend on what the body does.
struct Evaluator::Loop final : Object {
  const Statement* statement = nullptr;
  Scope* outside = nullptr;
  std::vector<Value> source;
  std::shared_ptr<Object> iterator;  // used in place of source; consumed as the loop proceeds
  size_t next = 0;                   // index into source
  bool is_sized = false;             // the loop has the length of source
  std::optional<int64_t> length;
  std::optional<Value> after, before, current;
  int64_t index0 = -1;
  bool is_over = false;
};

// The next item that passes the test of the loop.
Result<std::optional<Value>> Evaluator::advance(Loop& loop) {
  while (!loop.is_over) {
    if (!budget_.step()) return budget_.exceeded();
    std::optional<Value> item;
    if (loop.iterator != nullptr) {
      auto& iterator = static_cast<IteratorObject&>(*loop.iterator);
      if (iterator.next == iterator.items.size()) {
        SPECD_OK_OR_RETURN(iterator.error);
        break;
      }
      item = iterator.items[iterator.next++];
    } else {
      if (loop.next == loop.source.size()) break;
      item = loop.source[loop.next++];
    }
    if (loop.statement->test == nullptr || loop.is_sized) return item;
    Scope scope{.parent = loop.outside};
    SPECD_OK_OR_RETURN(assign_to(*loop.statement->target, *item, &scope));
    SPECD_TRY(const Value passes, evaluate(*loop.statement->test, &scope));
    if (truth(passes)) return item;
  }
  return std::optional<Value>();
}

Result<bool> Evaluator::has_next(Loop& loop) {
  if (!loop.after.has_value()) {
    SPECD_TRY(loop.after, advance(loop));
  }
  return loop.after.has_value();
}

Result<int64_t> Evaluator::length_of(Loop& loop) {
  if (loop.length.has_value()) return *loop.length;
  // With a test or an iterator the length is unknown: read the rest.
  std::vector<Value> rest;
  while (true) {
    SPECD_TRY(std::optional<Value> item, advance(loop));
    if (!item.has_value()) break;
    rest.push_back(std::move(*item));
  }
  const auto n = static_cast<int64_t>(rest.size());
  loop.source = std::move(rest);
  loop.iterator = nullptr;
  loop.next = 0;
  loop.is_sized = true;
  loop.length = n + loop.index0 + 1 + (loop.after.has_value() ? 1 : 0);
  return *loop.length;
}

Result<Value> Evaluator::loop_attribute(const Value& value, std::string_view name) {
  Loop& loop = static_cast<Loop&>(*value.shared());
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") {
    SPECD_TRY(const bool more, has_next(loop));
    return Value::boolean(!more);
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    SPECD_TRY(const int64_t n, length_of(loop));
    if (name == "length") return Value::integer(n);
    return Value::integer(n - loop.index0 - (name == "revindex" ? 0 : 1));
  }
  if (name == "previtem") {
    return loop.before.has_value() ? *loop.before : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    SPECD_TRY(const bool more, has_next(loop));
    return more ? *loop.after : Value::undefined("there is no next item");
  }
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  return Status(Code::kUnsupported, "loop." + quote(name, 40) + " is not supported");
}

Result<Evaluator::Flow> Evaluator::run_for(const Statement& statement, Scope* scope) {
  SPECD_TRY(const Value iterable, evaluate(*statement.value, scope));
  auto loop = std::make_shared<Loop>();
  // A namespace may keep the loop, but must not keep more loops through its items: freeing a chain
  // of them would recurse once per link.
  struct Release {
    Loop& loop;
    ~Release() {
      loop.source.clear();
      loop.iterator.reset();
      for (std::optional<Value>* item : {&loop.before, &loop.current, &loop.after}) {
        if (item->has_value() && (*item)->is(Kind::kLoop)) item->reset();
      }
    }
  } release{*loop};
  loop->statement = &statement;
  loop->outside = scope;
  if (iterable.is(Kind::kIterator)) {
    loop->iterator = iterable.shared();
  } else {
    Result<std::vector<Value>> items = items_of(iterable, budget_);
    if (!items.ok()) return at(statement.offset, items.status());
    loop->source = std::move(items).value();
    if (statement.test == nullptr) loop->length = static_cast<int64_t>(loop->source.size());
  }
  // jinja2 notes only at the end of the body that the loop ran, so a loop in which every turn ends
  // with break or continue runs its else, too.
  bool is_empty = true;
  Flow flow = Flow::kNormal;
  while (flow != Flow::kBreak) {
    const Result<bool> more = has_next(*loop);
    if (!more.ok()) return at(statement.offset, more.status());
    if (!more.value()) break;
    loop->before = std::move(loop->current);
    loop->current = std::exchange(loop->after, std::nullopt);
    ++loop->index0;
    Scope inner{.parent = scope};
    if (loop_name_ >= 0) assign(loop_name_, Value::object(Kind::kLoop, loop), &inner);
    SPECD_OK_OR_RETURN(assign_to(*statement.target, *loop->current, &inner));
    SPECD_TRY(flow, run_body(statement.body, &inner));
    if (flow == Flow::kNormal) is_empty = false;
  }
  loop->is_over = true;
  if (!is_empty) return Flow::kNormal;
  Scope inner{.parent = scope};
  return run_body(statement.otherwise, &inner);
}

Result<Value> Evaluator::evaluate_call(const Expression& expression, Scope* scope) {
  const Expression& called = *expression.args[0];
  // loop.cycle exists only as a call.
  if (called.kind == Expression::Kind::kAttribute && called.word == "cycle") {
    SPECD_TRY(const Value owner, evaluate(*called.args[0], scope));
    if (owner.is(Kind::kLoop)) {
      SPECD_TRY(const std::vector<Value> values, evaluate_all(expression, 1, scope));
      if (values.empty()) return type_error("no items for cycling given");
      const auto at_index = static_cast<uint64_t>(static_cast<Loop&>(*owner.shared()).index0);
      return values[at_index % values.size()];
    }
  }
  SPECD_TRY(const Value callee, evaluate(called, scope));
  SPECD_TRY(const std::vector<Value> arguments, evaluate_all(expression, 1, scope));
  Keywords keywords;
  for (const auto& [name, value] : expression.keywords) {
    SPECD_JINJA_BYTES(budget_, name.size());
    SPECD_TRY(Value evaluated, evaluate(*value, scope));
    keywords.emplace_back(name, std::move(evaluated));
  }
  switch (callee.kind()) {
    case Kind::kUndefined:
      return undefined_error(callee);
    case Kind::kMacro:
      return call_macro(*callee.macro_definition(), arguments, keywords);
    case Kind::kFunction:
      return call_function(callee.which_function(), arguments, keywords);
    case Kind::kMethod:
      return call_method(callee.bound(), arguments, keywords, budget_);
    default:
      return type_error(std::string("'") + callee.type_name() + "' object is not callable");
  }
}

Result<Value> Evaluator::call_macro(const Statement& macro, const std::vector<Value>& arguments,
                                    const Keywords& keywords) {
  const std::string& name = syntax_.names[static_cast<size_t>(macro.name)];
  const auto& parameters = macro.parameters;
  if (arguments.size() > parameters.size()) {
    return type_error("macro " + quote(name, 40) + " takes not more than " +
                      std::to_string(parameters.size()) + " argument(s)");
  }
  // A macro sees the template's names, not its caller's.
  Scope scope{.parent = nullptr};
  for (size_t i = 0; i < arguments.size(); ++i) {
    assign(parameters[i].name, arguments[i], &scope);
  }
  for (const auto& [keyword, value] : keywords) {
    size_t i = arguments.size();
    SPECD_JINJA_BYTES(budget_, parameters.size() * (8 + keyword.size()));  // compares with each
    while (i < parameters.size() &&
           syntax_.names[static_cast<size_t>(parameters[i].name)] != keyword) {
      ++i;
    }
    if (i == parameters.size()) {
      return type_error("macro " + quote(name, 40) + " takes no keyword argument " +
                        quote(keyword, 40));
    }
    assign(parameters[i].name, value, &scope);
  }
  for (size_t i = arguments.size(); i < parameters.size(); ++i) {
    SPECD_JINJA_STEPS(budget_, 1 + scope.values.size() / 16);
    const NameId parameter = parameters[i].name;
    const bool is_given = std::any_of(scope.values.begin(), scope.values.end(),
                                      [&](const auto& each) { return each.first == parameter; });
    if (is_given) continue;
    if (parameters[i].fallback == nullptr) {
      assign(
          parameter,
          Value::undefined("parameter " + quote(syntax_.names[static_cast<size_t>(parameter)], 40) +
                           " was not provided"),
          &scope);
      continue;
    }
    SPECD_TRY(Value value, evaluate(*parameters[i].fallback, &scope));
    assign(parameter, std::move(value), &scope);
  }
  return captured(macro.body, scope);
}

Result<Value> Evaluator::call_function(Function which, const std::vector<Value>& arguments,
                                       const Keywords& keywords) {
  if (which == Function::kNamespace) return make_namespace(arguments, keywords);
  if (!keywords.empty()) return type_error("this function takes no named arguments");
  if (which == Function::kRange) return make_range(arguments);
  if (arguments.size() != 1) return type_error("this function takes one argument");
  if (which == Function::kStrftimeNow) return strftime_now(arguments[0]);
  SPECD_TRY(const MarkedText message, str(arguments[0], budget_));
  return Status(Code::kInvalidArgument, "the template refuses: " + quote(message.bytes(), 1000));
}

Result<Value> Evaluator::make_range(const std::vector<Value>& arguments) {
  if (arguments.empty() || arguments.size() > 3) return type_error("range takes 1 to 3 numbers");
  for (const Value& argument : arguments) {
    if (argument.is_undefined()) return undefined_error(argument);
    if (!argument.is_integer()) {
      return type_error(std::string("range of a ") + argument.type_name());
    }
  }
  auto range = std::make_shared<RangeObject>();
  range->start = arguments.size() > 1 ? arguments[0].as_int() : 0;
  range->stop = arguments[arguments.size() > 1 ? 1 : 0].as_int();
  range->step = arguments.size() > 2 ? arguments[2].as_int() : 1;
  if (range->step == 0) return Status(Code::kInvalidArgument, "range() arg 3 must not be zero");
  const bool is_up = range->step > 0;
  if (is_up ? range->start < range->stop : range->start > range->stop) {
    // The difference of two 64-bit integers fits an unsigned one.
    const uint64_t distance =
        is_up ? static_cast<uint64_t>(range->stop) - static_cast<uint64_t>(range->start)
              : static_cast<uint64_t>(range->start) - static_cast<uint64_t>(range->stop);
    const uint64_t step = is_up ? static_cast<uint64_t>(range->step)
                                : uint64_t{0} - static_cast<uint64_t>(range->step);
    const uint64_t size = (distance - 1) / step + 1;
    if (size > static_cast<uint64_t>(Limits::kRange)) {
      return Status(Code::kInvalidArgument,
                    "Range too big: more than " + std::to_string(Limits::kRange) + " items");
    }
    range->size = static_cast<int64_t>(size);
  }
  return Value::object(Kind::kRange, std::move(range));
}

Result<Value> Evaluator::make_namespace(const std::vector<Value>& arguments,
                                        const Keywords& keywords) {
  if (arguments.size() > 1 || (arguments.size() == 1 && !arguments[0].is(Kind::kDict))) {
    return Status(Code::kUnsupported, "namespace takes named values, or a mapping");
  }
  auto made = std::make_shared<NamespaceObject>();
  const auto add = [&](const std::string& name, const Value& value) -> Status {
    if (name.substr(0, 1) == "_") {
      return Status(Code::kInvalidArgument, "a namespace cannot store " + quote(name, 40));
    }
    if (value.depth() >= Limits::kValueDepth) {
      return Status(Code::kInvalidArgument, "values nest too deeply");
    }
    SPECD_JINJA_BYTES(budget_, 4 * sizeof(Value) + name.size());
    made->values[name] = value;
    return Status();
  };
  if (!arguments.empty()) {
    for (const auto& [key, value] : arguments[0].dict().entries()) {
      if (!key.is_string()) return type_error("a name in a namespace is not a string");
      SPECD_OK_OR_RETURN(add(key.bytes(), value));
    }
  }
  for (const auto& [name, value] : keywords) SPECD_OK_OR_RETURN(add(name, value));
  SPECD_JINJA_BYTES(budget_, 256);
  namespaces_.push_back(made);
  return Value::object(Kind::kNamespace, std::move(made));
}

Result<Value> Evaluator::strftime_now(const Value& format) {
  if (!format.is_string()) return type_error("strftime_now needs a string");
  const std::string& text = format.bytes();
  // The directives that C and Python format alike; %f, %z and some others are Python's own.
  constexpr std::string_view kLetters = "aAbBdeHIjmMpSyYFTDRu%";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') continue;
    if (++i < text.size() && text[i] == '-') ++i;
    if (i == text.size() || kLetters.find(text[i]) == std::string_view::npos) {
      return Status(Code::kUnsupported, "the format " + quote(text, 60) + " is not supported");
    }
  }
  if (text.empty()) return Value::string("");
  std::array<char, 512> buffer;
  const size_t n = std::strftime(buffer.data(), buffer.size(), text.c_str(), &now_);
  if (n == 0 || text.find('\0') != std::string::npos) {
    return Status(Code::kUnsupported, "the format " + quote(text, 60) + " is not supported");
  }
  return make_string(MarkedText(std::string_view(buffer.data(), n), !format.text().marks().empty()),
                     budget_);
}

}  // namespace specd::jinja
