// Converts JSON of the request to values, from events, since Json does not keep the order of keys.
#include <utility>

#include "core/base/json_events.h"
#include "core/base/quote.h"
#include "core/chat/jinja/template.h"

namespace specd::jinja {
namespace {

class Builder final : public JsonEvents {
 public:
  explicit Builder(Budget& budget) : budget_(budget) {}

  Value take_root() { return std::move(root_); }

  bool null() override { return put(Value::none()); }
  bool boolean(bool value) override { return put(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return put(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return too_large(std::to_string(value));
    return put(Value::integer(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    // An integer beyond 64 bits arrives as a float and would be printed as another number.
    if (text.find_first_of(".eE") == std::string::npos) return too_large(text);
    return put(Value::real(value));
  }
  bool string(string_t& value) override {
    const Result<Value> made = make_string(MarkedText(value, true), budget_);
    return made.ok() ? put(made.value()) : too_much();
  }
  bool key(string_t& name) override {
    Open& object = stack_.back();
    if (!budget_.step()) return too_much();
    if (object.dict->find(name) != nullptr) {
      return refuse("the key " + quote(name, 60) + " occurs twice");
    }
    object.key = std::move(name);
    return true;
  }

 private:
  struct Open {
    Kind kind;
    std::shared_ptr<DictObject> dict;
    std::vector<Value> items;
    std::string key;
  };

  bool too_large(const std::string& number) {
    return refuse("the integer " + quote(number, 40) + " exceeds 64 bits");
  }
  bool too_much() {
    const Limits& limits = budget_.limits();
    return refuse("more than " + std::to_string(limits.steps_max) + " values and keys, or than " +
                  std::to_string(limits.bytes_max) +
                  " bytes as values, in all JSON of the request");
  }
  bool put(const Value& value) {
    if (!budget_.step() || !budget_.bytes(sizeof(Value))) return too_much();
    const Value marked = value.with_origin(true);
    if (stack_.empty()) {
      root_ = marked;
    } else if (stack_.back().kind == Kind::kList) {
      stack_.back().items.push_back(marked);
    } else {
      const Result<Value> key = make_string(MarkedText(stack_.back().key, true), budget_);
      if (!key.ok()) return too_much();
      const Status status = stack_.back().dict->set(key.value().with_origin(true), marked, budget_);
      if (!status.ok()) return too_much();
    }
    return true;
  }
  bool open_object() override {
    stack_.push_back(
        {.kind = Kind::kDict, .dict = std::make_shared<DictObject>(), .items = {}, .key = {}});
    return true;
  }
  bool open_array() override {
    stack_.push_back({.kind = Kind::kList, .dict = nullptr, .items = {}, .key = {}});
    return true;
  }
  bool close() override {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    Result<Value> made = done.kind == Kind::kDict
                             ? make_dict(std::move(done.dict), budget_)
                             : make_sequence(Kind::kList, std::move(done.items), budget_);
    return made.ok() ? put(made.value()) : too_much();
  }

  Budget& budget_;
  std::vector<Open> stack_;
  Value root_;
};

}  // namespace

Result<Value> value_from_json(std::string_view text, const std::string& where, Budget& budget) {
  Builder builder(budget);
  const std::optional<JsonFault> fault = read_json(text, builder);
  if (!fault.has_value()) return builder.take_root();
  return Status(fault->code == Code::kDataLoss ? Code::kInvalidArgument : fault->code, where,
                "byte " + std::to_string(fault->offset) + ": " + fault->what);
}

}  // namespace specd::jinja
