#include "core/chat/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "core/base/utf8.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {
namespace {

Status unprintable(const Value& value) {
  return Status(Code::kUnsupported, std::string("printing a ") + value.type_name() +
                                        " is not supported: it has no text of its own");
}

// Equal keys have the same canonical text: in Python 1, 1.0 and true are one key.
Result<std::string> canonical_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return key.bytes();
    case Kind::kNone:
      return std::string(
          "\xFF"
          "none");
    case Kind::kBool:
    case Kind::kInt:
      return "\xFF" + std::to_string(key.as_int());
    case Kind::kFloat: {
      const double value = key.as_double();
      if (value == std::floor(value) && std::abs(value) < 9e15) {
        return "\xFF" + std::to_string(static_cast<int64_t>(value));
      }
      return "\xFF" + float_repr(value);
    }
    case Kind::kList:
    case Kind::kDict:
      return Status(Code::kInvalidArgument,
                    std::string("unhashable type: '") + key.type_name() + "'");
    default:
      return Status(Code::kUnsupported,
                    std::string("a ") + key.type_name() + " as a key is not supported");
  }
}

// Memory of a list, string or dict without its items, and of a dict's entry: the key as a value,
// its index entry, and its place in the list of entries.
constexpr uint64_t kObjectBytes = 128;
constexpr uint64_t kEntryBytes = 192;

int depth_of(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

Status too_deep() {
  return Status(Code::kInvalidArgument,
                "values nest deeper than " + std::to_string(Limits::kValueDepth) + " levels");
}

Status append_items(const std::vector<Value>& items, bool from_request, MarkedText& out,
                    Budget& budget) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ", from_request);
    SPECD_OK_OR_RETURN(append_repr(items[i], out, budget));
  }
  return Status();
}

}  // namespace

Value Value::undefined(std::string why) {
  Value value(Kind::kUndefined);
  auto object = std::make_shared<UndefinedObject>();
  object->reason = std::move(why);
  value.object_ = std::move(object);
  return value;
}
Value Value::boolean(bool truth) {
  Value value(Kind::kBool);
  value.integer_ = truth ? 1 : 0;
  return value;
}
Value Value::integer(int64_t number) {
  Value value(Kind::kInt);
  value.integer_ = number;
  return value;
}
Value Value::real(double number) {
  Value value(Kind::kFloat);
  value.real_ = number;
  return value;
}
Value Value::string(MarkedText text) {
  Value value(Kind::kString);
  value.object_ = std::make_shared<StringObject>(std::move(text));
  return value;
}
Value Value::function(Function which) {
  Value value(Kind::kFunction);
  value.integer_ = static_cast<int64_t>(which);
  return value;
}
Value Value::macro(const Statement* definition) {
  Value value(Kind::kMacro);
  value.macro_ = definition;
  return value;
}
Value Value::method(const Value& receiver, std::string_view name) {
  Value value(Kind::kMethod);
  auto object = std::make_shared<MethodObject>();
  object->receiver = receiver;
  object->name = name;
  value.object_ = std::move(object);
  return value;
}
Value Value::object(Kind kind, std::shared_ptr<Object> object) {
  Value value(kind);
  value.object_ = std::move(object);
  return value;
}

StringObject::StringObject(MarkedText t)
    : text(std::move(t)), is_ascii(jinja::is_ascii(text.bytes())) {}

const StringObject& Value::as_string() const { return static_cast<const StringObject&>(*object_); }
const MarkedText& Value::text() const { return as_string().text; }
const std::vector<Value>& Value::items() const {
  return static_cast<const SequenceObject&>(*object_).items;
}
const DictObject& Value::dict() const { return static_cast<const DictObject&>(*object_); }
const RangeObject& Value::range() const { return static_cast<const RangeObject&>(*object_); }
const ViewObject& Value::view() const { return static_cast<const ViewObject&>(*object_); }
IteratorObject& Value::iterator() const { return static_cast<IteratorObject&>(*object_); }
NamespaceObject& Value::name_space() const { return static_cast<NamespaceObject&>(*object_); }
const MethodObject& Value::bound() const { return static_cast<const MethodObject&>(*object_); }
const std::string& Value::undefined_reason() const {
  return static_cast<const UndefinedObject&>(*object_).reason;
}

int Value::depth() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<const SequenceObject&>(*object_).depth;
    case Kind::kDict:
      return dict().depth;
    case Kind::kView:
      return view().of.depth() + 1;
    case Kind::kIterator:
      return iterator().depth;
    case Kind::kMethod:
      return bound().receiver.depth() + 1;
    default:
      return 0;
  }
}

const char* Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "dict view";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
  }
  return "value";
}

const Value* DictObject::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

Result<const Value*> DictObject::find(const Value& key, Budget& budget) const {
  if (key.is_string()) {
    SPECD_JINJA_BYTES(budget, key.text().size());
    return find(key.bytes());
  }
  SPECD_TRY(const std::string canonical, canonical_key(key));
  return find(canonical);
}

namespace {
// A loop keeps its items, so a chain of loops could grow without end, and freeing it would recurse.
Status no_loop(const Value& value) {
  if (!value.is(Kind::kLoop)) return Status();
  return Status(Code::kUnsupported, "'loop' inside of a list or dict is not supported");
}
}  // namespace

Status DictObject::set(const Value& key, Value value, Budget& budget) {
  SPECD_OK_OR_RETURN(no_loop(value));
  SPECD_JINJA_BYTES(budget, kEntryBytes + (key.is_string() ? key.text().size() : 0));
  SPECD_TRY(std::string canonical, canonical_key(key));
  depth = std::max(depth, value.depth() + 1);
  const auto [slot, is_new] = index_.try_emplace(std::move(canonical), entries_.size());
  if (is_new) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[slot->second].second = std::move(value);
  }
  return Status();
}

Result<Value> make_sequence(Kind kind, std::vector<Value> items, Budget& budget) {
  SPECD_JINJA_BYTES(budget, kObjectBytes + items.size() * sizeof(Value));
  for (const Value& item : items) SPECD_OK_OR_RETURN(no_loop(item));
  auto object = std::make_shared<SequenceObject>();
  object->depth = depth_of(items);
  if (object->depth > Limits::kValueDepth) return too_deep();
  object->items = std::move(items);
  return Value::object(kind, std::move(object));
}

Result<Value> make_dict(std::shared_ptr<DictObject> dict, Budget& budget) {
  SPECD_JINJA_BYTES(budget, kObjectBytes);
  if (dict->depth > Limits::kValueDepth) return too_deep();
  return Value::object(Kind::kDict, std::move(dict));
}

Value make_iterator(std::vector<Value> items, Status error) {
  auto object = std::make_shared<IteratorObject>();
  object->depth = depth_of(items);
  object->items = std::move(items);
  object->error = std::move(error);
  return Value::object(Kind::kIterator, std::move(object));
}

Result<Value> make_string(MarkedText text, Budget& budget) {
  SPECD_JINJA_BYTES(budget, kObjectBytes + cost_of(text));
  return Value::string(std::move(text));
}

Result<std::vector<Value>> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
      SPECD_JINJA_BYTES(budget, value.items().size() * sizeof(Value));
      return value.items();
    case Kind::kString: {
      const MarkedText& text = value.text();
      SPECD_JINJA_BYTES(budget, text.size() * kObjectBytes);
      for (size_t at = 0; at < text.size();) {
        const size_t next = at + utf8_step(text.bytes(), at).bytes;
        items.push_back(Value::string(text.part(at, next)));
        at = next;
      }
      return items;
    }
    case Kind::kDict:
      SPECD_JINJA_BYTES(budget, value.dict().entries().size() * sizeof(Value));
      for (const DictObject::Entry& entry : value.dict().entries()) items.push_back(entry.first);
      return items;
    case Kind::kRange:
      SPECD_JINJA_BYTES(budget, static_cast<uint64_t>(value.range().size) * sizeof(Value));
      for (int64_t i = 0; i < value.range().size; ++i) {
        items.push_back(Value::integer(value.range().at(i)));
      }
      return items;
    case Kind::kView: {
      const ViewObject& view = value.view();
      SPECD_JINJA_BYTES(budget, view.of.dict().entries().size() * 4 * sizeof(Value));
      for (const DictObject::Entry& entry : view.of.dict().entries()) {
        if (view.which == ViewKind::kKeys) items.push_back(entry.first);
        if (view.which == ViewKind::kValues) items.push_back(entry.second);
        if (view.which == ViewKind::kItems) {
          SPECD_TRY(Value pair, make_sequence(Kind::kTuple, {entry.first, entry.second}, budget));
          items.push_back(std::move(pair).with_origin(view.of.from_request()));
        }
      }
      return items;
    }
    case Kind::kIterator: {
      IteratorObject& iterator = value.iterator();
      SPECD_JINJA_BYTES(budget, (iterator.items.size() - iterator.next) * sizeof(Value));
      items.assign(iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.next),
                   iterator.items.end());
      iterator.next = iterator.items.size();
      SPECD_OK_OR_RETURN(iterator.error);
      return items;
    }
    default:
      return Status(Code::kInvalidArgument,
                    std::string("'") + value.type_name() + "' object is not iterable");
  }
}

Status append_repr(const Value& value, MarkedText& out, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  const bool origin = value.from_request();
  switch (value.kind()) {
    case Kind::kUndefined:
      out.append("Undefined", false);
      return Status();
    case Kind::kNone:
      out.append("None", origin);
      return Status();
    case Kind::kBool:
      out.append(value.as_int() != 0 ? "True" : "False", origin);
      return Status();
    case Kind::kInt:
      out.append(std::to_string(value.as_int()), origin);
      return Status();
    case Kind::kFloat:
      out.append(float_repr(value.as_double()), origin);
      return Status();
    case Kind::kString:
      if (value.as_string().is_safe) {
        return Status(Code::kUnsupported, "repr() of a string marked safe is not supported");
      }
      SPECD_JINJA_BYTES(budget, cost_of(value.text()) * 4);
      append_string_repr(value.text(), origin || !value.text().marks().empty(), out);
      return Status();
    case Kind::kList:
      out.append("[", origin);
      SPECD_OK_OR_RETURN(append_items(value.items(), origin, out, budget));
      out.append("]", origin);
      return Status();
    case Kind::kTuple:
      out.append("(", origin);
      SPECD_OK_OR_RETURN(append_items(value.items(), origin, out, budget));
      out.append(value.items().size() == 1 ? ",)" : ")", origin);
      return Status();
    case Kind::kDict: {
      out.append("{", origin);
      bool is_first = true;
      for (const auto& [key, entry] : value.dict().entries()) {
        if (!is_first) out.append(", ", origin);
        is_first = false;
        SPECD_OK_OR_RETURN(append_repr(key, out, budget));
        out.append(": ", origin);
        SPECD_OK_OR_RETURN(append_repr(entry, out, budget));
      }
      out.append("}", origin);
      return Status();
    }
    case Kind::kRange: {
      const RangeObject& range = value.range();
      out.append("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop) +
                     (range.step == 1 ? "" : ", " + std::to_string(range.step)) + ")",
                 origin);
      return Status();
    }
    case Kind::kView: {
      const ViewObject& view = value.view();
      out.append(view.which == ViewKind::kItems  ? "dict_items(["
                 : view.which == ViewKind::kKeys ? "dict_keys(["
                                                 : "dict_values([",
                 false);
      SPECD_TRY(const std::vector<Value> items, items_of(value, budget));
      SPECD_OK_OR_RETURN(append_items(items, view.of.from_request(), out, budget));
      out.append("])", false);
      return Status();
    }
    default:
      return unprintable(value);
  }
}

Status append_str(const Value& value, MarkedText& out, Budget& budget) {
  if (value.is_undefined()) return Status();
  if (!value.is_string()) return append_repr(value, out, budget);
  SPECD_JINJA_BYTES(budget, cost_of(value.text()));
  out.append(value.text());
  return Status();
}

Result<MarkedText> str(const Value& value, Budget& budget) {
  MarkedText text;
  SPECD_OK_OR_RETURN(append_str(value, text, budget));
  return text;
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return value.text().size() > 0;
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().entries().empty();
    case Kind::kRange:
      return value.range().size > 0;
    case Kind::kView:
      return !value.view().of.dict().entries().empty();
    default:
      return true;
  }
}

}  // namespace specd::jinja
