// Evaluates a template once. One thread, one use.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/chat/jinja/syntax.h"
#include "core/chat/jinja/template.h"

namespace specd::jinja {

class Evaluator {
 public:
  // `now`: the time that strftime_now() formats. All arguments must outlive the evaluator.
  Evaluator(const Syntax& syntax, const std::tm& now, Budget& budget);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // What the template prints. kInvalidArgument and kUnsupported with the place in the template.
  Result<MarkedText> run(const Variables& variables);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  // The names that one loop, macro or block has set. The outermost names are in root_.
  struct Scope {
    const Scope* parent;  // null: the parent is root_
    std::vector<std::pair<NameId, Value>> values = {};
  };
  struct Loop;

  Result<Flow> run_body(const Body& body, Scope* scope);
  Result<Flow> run_statement(const Statement& statement, Scope* scope);
  Result<Flow> run_if(const Statement& statement, Scope* scope);
  Result<Flow> run_for(const Statement& statement, Scope* scope);
  Status run_set_block(const Statement& statement, Scope* scope);
  Result<Value> captured(const Body& body, Scope& scope);
  Status print(const Value& value);
  Status check_output();

  Result<Value> evaluate(const Expression& expression, Scope* scope);
  Result<Value> evaluate_kind(const Expression& expression, Scope* scope);
  // The value before a `|` and the arguments of its filter; null when omitted.
  struct Piped {
    Value input;
    std::vector<Value> values;
    std::vector<const Value*> arguments;  // into `values`, so Piped must not be copied
    Piped() = default;
    Piped(Piped&&) = default;
    Piped(const Piped&) = delete;
  };
  Result<Piped> evaluate_piped(const Expression& expression, Scope* scope);
  Result<Value> evaluate_filter(const Expression& expression, Scope* scope);
  Result<Value> evaluate_each(const Expression& expression, Scope* scope);
  Result<Value> evaluate_call(const Expression& expression, Scope* scope);
  Result<Value> evaluate_compare(const Expression& expression, Scope* scope);
  Result<std::vector<Value>> evaluate_all(const Expression& expression, size_t first, Scope* scope);

  Result<Value> call_macro(const Statement& macro, const std::vector<Value>& arguments,
                           const Keywords& keywords);
  Result<Value> call_function(Function which, const std::vector<Value>& arguments,
                              const Keywords& keywords);
  Result<Value> make_range(const std::vector<Value>& arguments);
  Result<Value> make_namespace(const std::vector<Value>& arguments, const Keywords& keywords);
  Result<Value> strftime_now(const Value& format);

  Result<Value> loop_attribute(const Value& value, std::string_view name);
  Result<std::optional<Value>> advance(Loop& loop);
  Result<bool> has_next(Loop& loop);
  Result<int64_t> length_of(Loop& loop);

  NameId id_of(std::string_view name) const;  // -1 when the template never uses the name
  Value look_up(NameId name, const Scope* scope) const;
  // Charges for the search of one scope. The caller's next step reports a spent budget.
  void charge_search(const Scope& scope) const { budget_.step(1 + scope.values.size() / 16); }
  void assign(NameId name, Value value, Scope* scope);
  Status assign_to(const Expression& target, const Value& value, Scope* scope);
  // Adds the place to an error that has none yet.
  Status at(size_t offset, const Status& status);

  const Syntax& syntax_;
  const std::tm& now_;
  Budget& budget_;
  NameId loop_name_ = -1;
  std::vector<std::optional<Value>> root_;  // by name
  MarkedText* out_ = nullptr;
  const Value* piped_ = nullptr;  // the input of a filter block
  int depth_ = 0;
  bool is_placed_ = false;  // the error being returned has its place
  // Namespaces and loops may refer to each other in cycles, so the destructor empties them.
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
};

}  // namespace specd::jinja
