#include "core/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/base/quote.h"
#include "core/chat/jinja/python_text.h"
#include "core/base/utf8.h"

namespace specd::jinja {
namespace {

constexpr int64_t kExactInDouble = int64_t{1} << 53;
constexpr int kUnordered = 2;  // NaN

const char* op_text(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      return "**";
  }
  return "?";
}

Status operand_error(const char* op, const Value& a, const Value& b) {
  return type_error(std::string("'") + op + "' between '" + a.type_name() + "' and '" +
                    b.type_name() + "'");
}
Status too_large() {
  return Status(Code::kUnsupported, "a number of more than 64 bits is not supported");
}
Status zero_division() { return Status(Code::kInvalidArgument, "division by zero"); }

// Integers and floats of 64 bits compare exactly here, as they do in Python.
int order_numbers(const Value& a, const Value& b) {
  const auto exact = [](const Value& value) {
    return value.is(Kind::kFloat) ? static_cast<long double>(value.as_double())
                                  : static_cast<long double>(value.as_int());
  };
  const long double x = exact(a);
  const long double y = exact(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : kUnordered;
}

Result<int64_t> integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  if (exponent > 63) return too_large();
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return too_large();
  }
  return result;
}

Result<Value> integer_operation(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kDivide:
      if (b == 0) return zero_division();
      if (a > kExactInDouble || a < -kExactInDouble || b > kExactInDouble || b < -kExactInDouble) {
        return too_large();
      }
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) return zero_division();
      if (b == -1) {  // the one quotient that can overflow
        if (op == BinaryOp::kModulo) return Value::integer(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);
      result = op == BinaryOp::kModulo ? a % b + (rounds_up ? b : 0) : a / b - (rounds_up ? 1 : 0);
      break;
    }
    case BinaryOp::kPower: {
      if (b < 0) {
        if (a == 0) return zero_division();
        return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      SPECD_TRY(result, integer_power(a, b));
      break;
    }
  }
  if (overflow) return too_large();
  return Value::integer(result);
}

Result<Value> real_operation(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(a + b);
    case BinaryOp::kSubtract:
      return Value::real(a - b);
    case BinaryOp::kMultiply:
      return Value::real(a * b);
    case BinaryOp::kDivide:
      if (b == 0) return zero_division();
      return Value::real(a / b);
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      // As CPython's float_divmod does it.
      if (b == 0) return zero_division();
      double modulo = std::fmod(a, b);
      double quotient = (a - modulo) / b;
      if (modulo != 0) {
        if ((b < 0) != (modulo < 0)) {
          modulo += b;
          quotient -= 1;
        }
      } else {
        modulo = std::copysign(0.0, b);
      }
      if (op == BinaryOp::kModulo) return Value::real(modulo);
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return Value::real(floored);
    }
    case BinaryOp::kPower: {
      if (a == 0 && b < 0) return zero_division();
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) {
        return Status(Code::kUnsupported, "complex numbers are not supported");
      }
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
        return Status(Code::kInvalidArgument, "the result of '**' is too large");
      }
      return Value::real(power);
    }
  }
  return Value::none();
}

Result<Value> repeat(const Value& value, int64_t times, Budget& budget) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (value.is_string()) {
    const uint64_t size = cost_of(value.text());
    if (size > 0 && n > budget.limits().bytes_max / size) return too_large();
    SPECD_JINJA_BYTES(budget, n * cost_of(value.text()));
    SPECD_JINJA_STEPS(budget, size > 0 ? n : 0);
    MarkedText out;
    for (uint64_t i = 0; size > 0 && i < n; ++i) out.append(value.text());
    return make_string(std::move(out), budget);
  }
  const std::vector<Value>& items = value.items();
  if (!items.empty() && n > budget.limits().bytes_max / sizeof(Value) / items.size()) {
    return too_large();
  }
  SPECD_JINJA_BYTES(budget, n * items.size() * sizeof(Value));
  std::vector<Value> out;
  for (uint64_t i = 0; !items.empty() && i < n; ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return make_sequence(value.kind(), std::move(out), budget);
}

// markupsafe.escape() of what is not marked safe.
MarkedText escaped(const Value& value) {
  if (value.as_string().is_safe) return value.text();
  MarkedText out;
  value.text().each_run([&](std::string_view run, bool from_request) {
    std::string text;
    for (const char c : run) {
      switch (c) {
        case '&':
          text += "&amp;";
          break;
        case '<':
          text += "&lt;";
          break;
        case '>':
          text += "&gt;";
          break;
        case '\'':
          text += "&#39;";
          break;
        case '"':
          text += "&#34;";
          break;
        default:
          text += c;
      }
    }
    out.append(text, from_request);
  });
  return out;
}

Status refuse_safe(const Value& value) {
  if (value.is_string() && value.as_string().is_safe) {
    return Status(Code::kUnsupported, "this operator on a string marked safe is not supported");
  }
  return Status();
}

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

// What getattr() finds on the Python object itself; absent: nothing there.
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

// The byte offset of character `index`. REQUIRES index <= characters.
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

// Counted once, and walked to both ends of a part.
Status charge_characters(const StringObject& text, Budget& budget) {
  if (!text.is_ascii) SPECD_JINJA_BYTES(budget, 4 * text.text.size());
  return Status();
}

// Of slice.indices(): a bound, absent or clamped.
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

Status type_error(const std::string& text) {
  return Status(Code::kInvalidArgument, "wrong type: " + text);
}
Status undefined_error(const Value& value) {
  return Status(Code::kInvalidArgument, value.undefined_reason());
}

Result<bool> equal(const Value& a, const Value& b, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      SPECD_JINJA_BYTES(budget, a.text().size());
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        SPECD_TRY(const bool same, equal(a.items()[i], b.items()[i], budget));
        if (!same) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.dict().entries().size() != b.dict().entries().size()) return false;
      for (const auto& [key, value] : a.dict().entries()) {
        SPECD_TRY(const Value* other, b.dict().find(key, budget));
        if (other == nullptr) return false;
        SPECD_TRY(const bool same, equal(value, *other, budget));
        if (!same) return false;
      }
      return true;
    }
    case Kind::kRange:
      return a.range().size == b.range().size &&
             (a.range().size == 0 || (a.range().start == b.range().start &&
                                      (a.range().size == 1 || a.range().step == b.range().step)));
    case Kind::kMacro:
      return a.macro_definition() == b.macro_definition();
    case Kind::kFunction:
      return a.which_function() == b.which_function();
    case Kind::kView:
    case Kind::kMethod:
      return Status(Code::kUnsupported,
                    std::string("comparing a ") + a.type_name() + " is not supported");
    default:
      return a.shared() == b.shared();
  }
}

Result<int> order(const Value& a, const Value& b, const char* op, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    SPECD_JINJA_BYTES(budget, std::min(a.text().size(), b.text().size()));
    const int sign = a.bytes().compare(b.bytes());  // of UTF-8: the order of the characters
    return sign < 0 ? -1 : sign > 0 ? 1 : 0;
  }
  if (!a.is_sequence() || a.kind() != b.kind()) return operand_error(op, a, b);
  const size_t n = std::min(a.items().size(), b.items().size());
  for (size_t i = 0; i < n; ++i) {
    SPECD_TRY(const bool same, equal(a.items()[i], b.items()[i], budget));
    if (!same) return order(a.items()[i], b.items()[i], op, budget);
  }
  return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
}

Result<bool> compare(CompareOp op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case CompareOp::kEq:
      return equal(a, b, budget);
    case CompareOp::kNe: {
      SPECD_TRY(const bool same, equal(a, b, budget));
      return !same;
    }
    case CompareOp::kIn:
      return contains(b, a, budget);
    case CompareOp::kNotIn: {
      SPECD_TRY(const bool inside, contains(b, a, budget));
      return !inside;
    }
    case CompareOp::kLt: {
      SPECD_TRY(const int sign, order(a, b, "<", budget));
      return sign == -1;
    }
    case CompareOp::kLe: {
      SPECD_TRY(const int sign, order(a, b, "<=", budget));
      return sign == -1 || sign == 0;
    }
    case CompareOp::kGt: {
      SPECD_TRY(const int sign, order(a, b, ">", budget));
      return sign == 1;
    }
    case CompareOp::kGe: {
      SPECD_TRY(const int sign, order(a, b, ">=", budget));
      return sign == 1 || sign == 0;
    }
  }
  return false;
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return type_error(std::string("'in' a string needs a string on its left, found ") +
                        item.type_name());
    }
    SPECD_JINJA_BYTES(budget, search_cost(container.text().size(), item.text().size()));
    return find_text(container.bytes(), item.bytes(), 0) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) {
    SPECD_TRY(const Value* found, container.dict().find(item, budget));
    return found != nullptr;
  }
  // An iterator is used up to the item.
  if (container.is(Kind::kIterator)) {
    IteratorObject& iterator = container.iterator();
    while (iterator.next < iterator.items.size()) {
      SPECD_TRY(const bool same, equal(iterator.items[iterator.next++], item, budget));
      if (same) return true;
    }
    SPECD_OK_OR_RETURN(iterator.error);
    return false;
  }
  SPECD_TRY(const std::vector<Value> items, items_of(container, budget));
  for (const Value& each : items) {
    SPECD_TRY(const bool same, equal(each, item, budget));
    if (same) return true;
  }
  return false;
}

Result<Value> binary(BinaryOp op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  if (op == BinaryOp::kAdd && a.is_string() && b.is_string() &&
      (a.as_string().is_safe || b.as_string().is_safe)) {
    SPECD_JINJA_BYTES(budget, 5 * (cost_of(a.text()) + cost_of(b.text())));
    MarkedText out = escaped(a);
    out.append(escaped(b));
    auto object = std::make_shared<StringObject>(std::move(out));
    object->is_safe = true;
    return Value::object(Kind::kString, std::move(object));
  }
  SPECD_OK_OR_RETURN(refuse_safe(a));
  SPECD_OK_OR_RETURN(refuse_safe(b));
  if (a.is_number() && b.is_number()) {
    SPECD_TRY(Value result, a.is_integer() && b.is_integer()
                                ? integer_operation(op, a.as_int(), b.as_int())
                                : real_operation(op, a.as_double(), b.as_double()));
    return result.with_origin(a.from_request() || b.from_request());
  }
  if (op == BinaryOp::kAdd && a.is_string() && b.is_string()) {
    SPECD_JINJA_BYTES(budget, cost_of(a.text()) + cost_of(b.text()));
    MarkedText out = a.text();
    out.append(b.text());
    return make_string(std::move(out), budget);
  }
  if (op == BinaryOp::kAdd && a.is_sequence() && a.kind() == b.kind()) {
    SPECD_JINJA_BYTES(budget, (a.items().size() + b.items().size()) * sizeof(Value));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return make_sequence(a.kind(), std::move(items), budget);
  }
  if (op == BinaryOp::kMultiply && b.is_integer() && (a.is_string() || a.is_sequence())) {
    return repeat(a, b.as_int(), budget);
  }
  if (op == BinaryOp::kMultiply && a.is_integer() && (b.is_string() || b.is_sequence())) {
    return repeat(b, a.as_int(), budget);
  }
  if (op == BinaryOp::kModulo && a.is_string()) {
    return Status(Code::kUnsupported, "formatting a string with '%' is not supported");
  }
  return operand_error(op_text(op), a, b);
}

Result<Value> negate(const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is(Kind::kFloat))
    return Value::real(-value.as_double()).with_origin(value.from_request());
  if (!value.is_integer()) return type_error(std::string("'-' of a ") + value.type_name());
  SPECD_TRY(const Value result, integer_operation(BinaryOp::kSubtract, 0, value.as_int()));
  return result.with_origin(value.from_request());
}
Result<Value> plus(const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is(Kind::kFloat)) return value;
  if (!value.is_integer()) return type_error(std::string("'+' of a ") + value.type_name());
  return Value::integer(value.as_int()).with_origin(value.from_request());
}

Result<Value> get_attribute(const Value& value, std::string_view name, Budget& budget) {
  SPECD_JINJA_STEPS(budget, 1);
  if (value.is_undefined()) return undefined_error(value);
  SPECD_JINJA_BYTES(budget, name.size());  // looked up by its hash
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
    // A key that cannot be one is not there.
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
    // -stride could overflow; a stride that long takes one item.
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
    SPECD_JINJA_BYTES(budget, part.size());
    bool too_long = false;
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_number) SPECD_JINJA_BYTES(budget, 8 * part.size());  // as what `int` reads
    Value key = Value::string(part);
    if (is_number) {
      const auto index = parse_int(part, too_long);
      if (!index.has_value()) return too_large();
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
