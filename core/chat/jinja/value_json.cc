#include <exception>
#include <nlohmann/json.hpp>

#include "core/base/quote.h"
#include "core/chat/jinja/template.h"

namespace specd::jinja {
namespace {

using Json = nlohmann::json;
constexpr size_t kDepthMax = 64;

// Builds values from parse events. Not core/base/json.h, whose objects forget the order of keys.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& where, Budget& budget) : where_(where), budget_(budget) {}

  Value take_root() { return std::move(root_); }
  const Status& error() const { return error_; }

  bool null() override { return put(Value::none()); }
  bool boolean(bool value) override { return put(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return put(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return too_large(std::to_string(value));
    return put(Value::integer(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    // An integer beyond 64 bits comes as a float and would be printed as another number.
    if (text.find_first_of(".eE") == std::string::npos) return too_large(text);
    return put(Value::real(value));
  }
  bool string(string_t& value) override {
    const Result<Value> made = make_string(MarkedText(value, true), budget_);
    return made.ok() ? put(made.value()) : too_much();
  }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Kind::kDict); }
  bool start_array(size_t) override { return open(Kind::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    Open& object = stack_.back();
    if (!budget_.step()) return too_much();
    if (object.dict->find(name) != nullptr) {
      return refuse("the key " + quote(name, 60) + " occurs twice");
    }
    object.key = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    // Not nlohmann's own name of the error.
    if (const size_t at = what.find("] "); at != std::string::npos) what.erase(0, at + 2);
    if (const size_t at = what.find("syntax error"); at != std::string::npos) what.erase(0, at);
    return refuse("malformed JSON at byte " + std::to_string(position > 0 ? position - 1 : 0) +
                  ": " + quote(what, 200));
  }

 private:
  struct Open {
    Kind kind;
    std::shared_ptr<DictObject> dict;
    std::vector<Value> items;
    std::string key;
  };

  bool refuse(const std::string& what) {
    error_ = Status(Code::kInvalidArgument, where_, what);
    return false;
  }
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
  bool open(Kind kind) {
    if (stack_.size() == kDepthMax) {
      return refuse("nested deeper than " + std::to_string(kDepthMax) + " levels");
    }
    stack_.push_back({.kind = kind,
                      .dict = kind == Kind::kDict ? std::make_shared<DictObject>() : nullptr,
                      .items = {},
                      .key = {}});
    return true;
  }
  bool close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    Result<Value> made = done.kind == Kind::kDict
                             ? make_dict(std::move(done.dict), budget_)
                             : make_sequence(Kind::kList, std::move(done.items), budget_);
    if (!made.ok()) return too_much();
    return put(made.value());
  }

  const std::string& where_;
  Budget& budget_;
  std::vector<Open> stack_;
  Value root_;
  Status error_;
};

}  // namespace

Result<Value> value_from_json(std::string_view text, const std::string& where, Budget& budget) {
  // nlohmann takes it as the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return Status(Code::kInvalidArgument, where,
                  "malformed JSON at byte " + std::to_string(zero) + ": a zero byte");
  Builder builder(where, budget);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take_root();
    if (!builder.error().ok()) return builder.error();
    return Status(Code::kInvalidArgument, where, "malformed JSON");
  } catch (const std::exception& error) {
    return Status(Code::kInternal, where, std::string("parsing JSON: ") + error.what());
  }
}

}  // namespace specd::jinja
