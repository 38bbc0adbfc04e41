#include "core/chat/jinja/lookup.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/chat/jinja/operators.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {
namespace {

constexpr std::string_view kStrMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear", "pop",    "reverse",
                                             "insert", "sort",  "extend", "remove"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kRangeMembers[] = {"count", "index", "start", "stop", "step"};
constexpr std::string_view kNumberMembers[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

template <size_t N>
bool has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string described(const Value& value) {
  return value.is(Kind::kNone) ? "None" : std::string(value.type_name()) + " object";
}

// What getattr() finds on the Python object itself, if anything.
Result<std::optional<Value>> own_attribute(const Value& value, std::string_view name) {
  std::optional<Value> nothing;
  const auto forbidden = [&] {
    return Value::undefined("access to attribute " + quote(name, 40) + " of '" + value.type_name() +
                            "' object is unsafe.");
  };
  const auto unsupported = [&] {
    return Status(Code::kUnsupported, "the attribute " + quote(name, 40) + " of a " +
                                          value.type_name() + " is not supported");
  };
  if (name.substr(0, 2) == "__") return unsupported();
  switch (value.kind()) {
    case Kind::kString:
      if (!has(kStrMethods, name)) return nothing;
      return std::optional<Value>(Value::method(value, name));
    case Kind::kDict:
      if (has(kDictChanges, name)) return std::optional<Value>(forbidden());
      if (!has(kDictMethods, name)) return nothing;
      return std::optional<Value>(Value::method(value, name));
    case Kind::kList:
      if (has(kListChanges, name)) return std::optional<Value>(forbidden());
      if (has(kListMethods, name)) return unsupported();
      return nothing;
    case Kind::kTuple:
      if (has(kTupleMethods, name)) return unsupported();
      return nothing;
    case Kind::kRange:
      if (has(kRangeMembers, name)) return unsupported();
      return nothing;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      if (has(kNumberMembers, name)) return unsupported();
      return nothing;
    case Kind::kNamespace: {
      const auto& values = value.name_space().values;
      const auto found = values.find(name);
      if (found == values.end()) return nothing;
      return std::optional<Value>(found->second);
    }
    case Kind::kNone:
      return nothing;
    default:
      return unsupported();
  }
}

// The byte offset of character `index`. REQUIRES index <= the number of characters
size_t byte_of_character(const StringObject& text, int64_t index) {
  if (text.is_ascii) return static_cast<size_t>(index);
  size_t at = 0;
  for (; index > 0; --index) at += utf8_step(text.text.bytes(), at).bytes;
  return at;
}
int64_t characters_of(const StringObject& text) {
  return static_cast<int64_t>(text.is_ascii ? text.text.size()
                                            : count_characters(text.text.bytes()));
}

// The cost of counting the characters and of walking to both ends of a part.
Status charge_characters(const StringObject& text, Budget& budget) {
  if (!text.is_ascii) SPECD_JINJA_BYTES(budget, 4 * text.text.size());
  return Status();
}

// One bound of slice.indices(), clamped; `fallback` when absent.
Result<int64_t> slice_bound(const Value& bound, int64_t fallback, int64_t size, bool backwards) {
  if (bound.is(Kind::kNone)) return fallback;
  if (!bound.is_integer()) {
    return type_error(std::string("slice indices must be integers, found ") + bound.type_name());
  }
  int64_t at = bound.as_int();
  if (at < 0) at = at < -size ? -1 : at + size;
  if (at < 0) return backwards ? -1 : 0;
  return std::min(at, backwards ? size - 1 : size);
}

}  // namespace

Result<Value> get_attribute(const Value& value, std::string_view name, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  if (value.is_undefined()) return undefined_error(value);
  SPECD_JINJA_BYTES(budget, name.size());  // for hashing
  SPECD_TRY(const std::optional<Value> own, own_attribute(value, name));
  if (own.has_value()) return *own;
  if (value.is(Kind::kDict)) {
    if (const Value* const found = value.dict().find(name); found != nullptr) return *found;
  }
  SPECD_JINJA_BYTES(budget, kUndefinedBytes);
  return Value::undefined("'" + described(value) + "' has no attribute " + quote(name, 80));
}

Result<Value> get_item(const Value& value, const Value& key, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  if (value.is_undefined()) return undefined_error(value);
  if (value.is(Kind::kDict)) {
    const Result<const Value*> found = value.dict().find(key, budget);
    // A value that cannot be a key is not found.
    if (!found.ok() && (budget.is_spent() || found.status().code() == Code::kUnsupported)) {
      return found.status();
    }
    if (found.ok() && found.value() != nullptr) return *found.value();
  }
  if (key.is_integer()) {
    int64_t index = key.as_int();
    const auto place = [&](int64_t size) {
      if (index < 0) index += size;
      return index >= 0 && index < size;
    };
    if (value.is_sequence() && place(static_cast<int64_t>(value.items().size()))) {
      return value.items()[static_cast<size_t>(index)];
    }
    if (value.is_string()) {
      const StringObject& text = value.as_string();
      SPECD_OK_OR_RETURN(charge_characters(text, budget));
      if (place(characters_of(text))) {
        const size_t begin = byte_of_character(text, index);
        return make_string(text.text.part(begin, begin + utf8_step(value.bytes(), begin).bytes),
                           budget);
      }
    }
    if (value.is(Kind::kRange) && place(value.range().size)) {
      return Value::integer(value.range().at(index));
    }
  }
  if (key.is_string()) {
    SPECD_JINJA_BYTES(budget, key.text().size());
    SPECD_TRY(const std::optional<Value> own, own_attribute(value, key.bytes()));
    if (own.has_value()) return *own;
    SPECD_JINJA_BYTES(budget, kUndefinedBytes);
    return Value::undefined("'" + described(value) + "' has no attribute " +
                            quote(key.bytes(), 80));
  }
  SPECD_JINJA_BYTES(budget, kUndefinedBytes);
  return Value::undefined(described(value) + " has no such element");
}

Result<Value> get_slice(const Value& value, const Value& start, const Value& stop,
                        const Value& step, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_string() && !value.is_sequence()) {
    if (value.is(Kind::kRange)) {
      return Status(Code::kUnsupported, "a slice of a range is not supported");
    }
    return type_error(std::string("a slice of a ") + value.type_name());
  }
  if (value.is_string()) SPECD_OK_OR_RETURN(charge_characters(value.as_string(), budget));
  const int64_t size = value.is_string() ? characters_of(value.as_string())
                                         : static_cast<int64_t>(value.items().size());
  if (!step.is(Kind::kNone) && !step.is_integer()) {
    return type_error(std::string("slice indices must be integers, found ") + step.type_name());
  }
  const int64_t stride = step.is(Kind::kNone) ? 1 : step.as_int();
  if (stride == 0) return Status(Code::kInvalidArgument, "slice step cannot be zero");
  const bool backwards = stride < 0;
  SPECD_TRY(const int64_t first, slice_bound(start, backwards ? size - 1 : 0, size, backwards));
  SPECD_TRY(const int64_t last, slice_bound(stop, backwards ? -1 : size, size, backwards));
  int64_t count = 0;
  if (!backwards && first < last) count = (last - first - 1) / stride + 1;
  if (backwards && last < first) {
    // -stride could overflow. A stride that long takes one item.
    count = stride < -size ? 1 : (first - last - 1) / -stride + 1;
  }
  if (value.is_sequence()) {
    std::vector<Value> items;
    SPECD_JINJA_BYTES(budget, static_cast<uint64_t>(count) * sizeof(Value));
    for (int64_t i = 0; i < count; ++i) {
      items.push_back(value.items()[static_cast<size_t>(first + i * stride)]);
    }
    return make_sequence(value.kind(), std::move(items), budget);
  }
  const StringObject& text = value.as_string();
  if (stride == 1 || count <= 1) {
    const size_t begin = count > 0 ? byte_of_character(text, first) : 0;
    const size_t end = count > 0 ? byte_of_character(text, first + count) : 0;
    return make_string(text.text.part(begin, end), budget);
  }
  SPECD_JINJA_BYTES(budget, text.text.size() * sizeof(size_t));
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.text.size(); at += utf8_step(text.text.bytes(), at).bytes) {
    starts.push_back(at);
  }
  starts.push_back(text.text.size());
  MarkedText out;
  SPECD_JINJA_STEPS(budget, static_cast<uint64_t>(count) / 4);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(first + i * stride);
    out.append(text.text, starts[at], starts[at + 1]);
  }
  return make_string(std::move(out), budget);
}

Result<Value> get_path(const Value& value, const Value& path, const Value* fallback,
                       Budget& budget) {
  if (path.is(Kind::kNone)) return value;
  const bool has_fallback = fallback != nullptr && !fallback->is(Kind::kNone);
  Value at = value;
  if (!path.is_string()) {
    SPECD_TRY(at, get_item(value, path, budget));
    return has_fallback && at.is_undefined() ? *fallback : at;
  }
  std::string_view rest = path.bytes();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    SPECD_JINJA_STEPS(budget, 1);  // a key is made, and hashed
    SPECD_JINJA_BYTES(budget, part.size());
    bool too_long = false;
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_number) SPECD_JINJA_BYTES(budget, 8 * part.size());  // as for the filter `int`
    Value key = Value::string(part);
    if (is_number) {
      const auto index = parse_int(part, too_long);
      if (!index.has_value()) return beyond_64_bits();
      key = Value::integer(*index);
    }
    SPECD_TRY(at, get_item(at, key, budget));
    if (has_fallback && at.is_undefined()) at = *fallback;
    if (dot == std::string_view::npos) return at;
    rest.remove_prefix(dot + 1);
  }
}

Result<int64_t> length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return characters_of(value.as_string());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries().size());
    case Kind::kRange:
      return value.range().size;
    case Kind::kView:
      return static_cast<int64_t>(value.view().of.dict().entries().size());
    default:
      return type_error(std::string("object of type '") + value.type_name() + "' has no len()");
  }
}

}  // namespace specd::jinja
