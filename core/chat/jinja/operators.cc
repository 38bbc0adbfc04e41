#include "core/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/chat/jinja/python_text.h"

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
  if (exponent > 63) return beyond_64_bits();
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return beyond_64_bits();
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
        return beyond_64_bits();
      }
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) return zero_division();
      if (b == -1) {  // the only divisor whose quotient can overflow
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
  if (overflow) return beyond_64_bits();
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
      // Follows CPython's float_divmod.
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

// n times `each` bytes; more than the budget has where that could overflow.
uint64_t cost_of_repeated(uint64_t n, uint64_t each, const Budget& budget) {
  const uint64_t most = budget.limits().bytes_max;
  return each > 0 && n > most / each ? most + 1 : n * each;
}

Result<Value> repeat(const Value& value, int64_t times, Budget& budget) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (value.is_string()) {
    const uint64_t size = cost_of(value.text());
    SPECD_JINJA_BYTES(budget, cost_of_repeated(n, size, budget));
    SPECD_JINJA_STEPS(budget, size > 0 ? n : 0);
    MarkedText out;
    for (uint64_t i = 0; size > 0 && i < n; ++i) out.append(value.text());
    return make_string(std::move(out), budget);
  }
  const std::vector<Value>& items = value.items();
  SPECD_JINJA_BYTES(budget, cost_of_repeated(n, items.size() * sizeof(Value), budget));
  std::vector<Value> out;
  for (uint64_t i = 0; !items.empty() && i < n; ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return make_sequence(value.kind(), std::move(out), budget);
}

// markupsafe.escape() of text that is not marked safe.
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

}  // namespace

Status type_error(const std::string& text) {
  return Status(Code::kInvalidArgument, "wrong type: " + text);
}
Status beyond_64_bits() {
  return Status(Code::kUnsupported, "a number of more than 64 bits is not supported");
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
    const int sign = a.bytes().compare(b.bytes());  // UTF-8 sorts like its code points
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
  // Consumes an iterator up to the item.
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

}  // namespace specd::jinja
