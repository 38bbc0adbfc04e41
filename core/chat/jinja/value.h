// The values of a template: Python's, with the origin of every text.
//
// Values are cheap to copy and immutable, except for namespaces and iterators, whose copies share
// their state. Integers have 64 bits; an operation that needs more is refused and never wraps
// around.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/siphash.h"
#include "core/base/status.h"
#include "core/chat/jinja/budget.h"
#include "core/chat/jinja/marked_text.h"

namespace specd::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,       // dict.items(), .keys(), .values()
  kIterator,   // the result of filters like map: can be read once
  kNamespace,  // the only value that a template can change
  kLoop,       // `loop` in a for
  kMacro,
  kFunction,  // range, namespace, raise_exception, strftime_now
  kMethod,    // a bound method: 'x'.upper
};

enum class Function : uint8_t { kRange, kNamespace, kRaiseException, kStrftimeNow };
enum class ViewKind : uint8_t { kItems, kKeys, kValues };

struct Object {
  virtual ~Object() = default;
};
struct StringObject;
struct SequenceObject;
struct DictObject;
struct RangeObject;
struct ViewObject;
struct IteratorObject;
struct NamespaceObject;
struct MethodObject;
struct Statement;

class Value {
 public:
  Value() : Value(Kind::kNone) {}
  static Value none() { return Value(Kind::kNone); }
  // `why` is the error message for using it: "'tools' is undefined".
  static Value undefined(std::string why);
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value string(MarkedText text);
  static Value string(std::string_view text) { return string(MarkedText(text, false)); }
  static Value function(Function which);
  static Value macro(const Statement* definition);
  static Value method(const Value& receiver, std::string_view name);
  static Value object(Kind kind, std::shared_ptr<Object> object);

  // A copy that counts as sent by the request, so that its printed text is marked.
  Value with_origin(bool from_request) const {
    Value copy = *this;
    copy.from_request_ = from_request;
    return copy;
  }
  bool from_request() const { return from_request_; }  // for strings see their marks

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // as in Python
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }

  // Each REQUIRES the kind.
  int64_t as_int() const { return integer_; }  // also for a bool
  double as_double() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const MarkedText& text() const;
  const std::string& bytes() const { return text().bytes(); }
  const StringObject& as_string() const;
  const std::vector<Value>& items() const;  // list, tuple
  const DictObject& dict() const;
  const RangeObject& range() const;
  const ViewObject& view() const;
  IteratorObject& iterator() const;
  NamespaceObject& name_space() const;
  const MethodObject& bound() const;
  const std::string& undefined_reason() const;
  Function which_function() const { return static_cast<Function>(integer_); }
  const Statement* macro_definition() const { return macro_; }
  const std::shared_ptr<Object>& shared() const { return object_; }

  int depth() const;  // levels of nested containers
  // The name of the type in Python's messages.
  const char* type_name() const;

 private:
  explicit Value(Kind kind) : kind_(kind), integer_(0) {}

  Kind kind_;
  bool from_request_ = false;
  union {
    int64_t integer_;
    double real_;
    const Statement* macro_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject final : Object {
  explicit StringObject(MarkedText t);
  MarkedText text;
  bool is_ascii;
  bool is_safe = false;  // jinja2's Markup: joining escapes the other text
};

struct SequenceObject final : Object {
  std::vector<Value> items;
  int depth = 1;
};

struct DictObject final : Object {
  using Entry = std::pair<Value, Value>;

  // The value of a key, or null. Hashes the key; the caller charges for its length.
  const Value* find(std::string_view key) const;
  // The same, charged here. kInvalidArgument for a value that cannot be a key.
  Result<const Value*> find(const Value& key, Budget& budget) const;
  // Replaces the value of an equal key, as Python does. kInvalidArgument as above.
  Status set(const Value& key, Value value, Budget& budget);
  const std::vector<Entry>& entries() const { return entries_; }
  int depth = 1;

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t, KeyedHash, std::equal_to<>>
      index_;  // canonical key -> entry
};

struct RangeObject final : Object {
  int64_t start = 0, step = 1, size = 0;
  int64_t stop = 0;  // as the template gave it
  int64_t at(int64_t i) const { return start + i * step; }
};

struct ViewObject final : Object {
  Value of;
  ViewKind which = ViewKind::kItems;
};

struct IteratorObject final : Object {
  std::vector<Value> items;
  Status error;  // for reading past the items
  size_t next = 0;
  int depth = 1;
};

struct NamespaceObject final : Object {
  using Values = std::unordered_map<std::string, Value, KeyedHash, std::equal_to<>>;
  Values values;
};

struct MethodObject final : Object {
  Value receiver;
  std::string name;
};

struct UndefinedObject final : Object {
  std::string reason;
};

// The memory of an undefined value, to charge for those that a request or template can multiply.
constexpr uint64_t kUndefinedBytes = 128;

// Build containers. kInvalidArgument when they nest too deeply.
Result<Value> make_sequence(Kind kind, std::vector<Value> items, Budget& budget);
Result<Value> make_dict(std::shared_ptr<DictObject> dict, Budget& budget);
Value make_iterator(std::vector<Value> items, Status error);
// Charges for the text and for the object around it.
Result<Value> make_string(MarkedText text, Budget& budget);
// The cost of copying the text.
inline uint64_t cost_of(const MarkedText& text) {
  return text.size() + text.marks().size() * sizeof(TextRange);
}

// The items of an iterable value; this consumes an iterator. The undefined value has none.
// kInvalidArgument for values that are not iterable.
Result<std::vector<Value>> items_of(const Value& value, Budget& budget);

// Python's str() and repr(), byte for byte. kUnsupported for values whose text would be an object's
// address ("<generator object ...>").
Status append_str(const Value& value, MarkedText& out, Budget& budget);
Status append_repr(const Value& value, MarkedText& out, Budget& budget);
Result<MarkedText> str(const Value& value, Budget& budget);

bool truth(const Value& value);

}  // namespace specd::jinja
