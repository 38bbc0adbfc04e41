#include <algorithm>
#include <iterator>

#include "core/chat/jinja/builtins.h"
#include "core/chat/jinja/operators.h"

namespace specd::jinja {
namespace {

template <Kind... kKinds>
Result<bool> is_kind(const Value& value, Arguments, Budget&) {
  return (value.is(kKinds) || ...);
}

template <CompareOp kOp>
Result<bool> compares(const Value& value, Arguments arguments, Budget& budget) {
  return compare(kOp, value, *arguments[0], budget);
}

Result<bool> is_defined(const Value& value, Arguments, Budget&) { return !value.is_undefined(); }

template <int kBool>
Result<bool> is_bool(const Value& value, Arguments, Budget&) {
  return value.is(Kind::kBool) && value.as_int() == kBool;
}

// value % divisor == rest
Result<bool> leaves(const Value& value, const Value& divisor, int64_t rest, Budget& budget) {
  SPECD_TRY(const Value modulo, binary(BinaryOp::kModulo, value, divisor, budget));
  return equal(modulo, Value::integer(rest), budget);
}
template <int kRest>
Result<bool> is_parity(const Value& value, Arguments, Budget& budget) {
  return leaves(value, Value::integer(2), kRest, budget);
}
Result<bool> is_divisible(const Value& value, Arguments arguments, Budget& budget) {
  return leaves(value, *arguments[0], 0, budget);
}

Result<bool> is_same(const Value& value, Arguments arguments, Budget&) {
  const Value& other = *arguments[0];
  if (value.kind() != other.kind()) return false;
  if (value.is(Kind::kNone)) return true;
  if (value.is(Kind::kBool)) return value.as_int() == other.as_int();
  return Status(Code::kUnsupported, "sameas of anything but none and booleans is not supported");
}

constexpr auto is_number = is_kind<Kind::kBool, Kind::kInt, Kind::kFloat>;
// jinja2's undefined value has a length and items, and can be iterated.
constexpr auto is_sequence =
    is_kind<Kind::kUndefined, Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kRange>;
constexpr auto is_iterable =
    is_kind<Kind::kUndefined, Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kRange,
            Kind::kView, Kind::kIterator, Kind::kLoop>;
constexpr auto is_callable =
    is_kind<Kind::kUndefined, Kind::kLoop, Kind::kMacro, Kind::kFunction, Kind::kMethod>;

const TestSpec kTests[] = {
    {"!=", 1, compares<CompareOp::kNe>},
    {"<", 1, compares<CompareOp::kLt>},
    {"<=", 1, compares<CompareOp::kLe>},
    {"==", 1, compares<CompareOp::kEq>},
    {">", 1, compares<CompareOp::kGt>},
    {">=", 1, compares<CompareOp::kGe>},
    {"boolean", 0, is_kind<Kind::kBool>},
    {"callable", 0, is_callable},
    {"defined", 0, is_defined},
    {"divisibleby", 1, is_divisible},
    {"eq", 1, compares<CompareOp::kEq>},
    {"equalto", 1, compares<CompareOp::kEq>},
    {"even", 0, is_parity<0>},
    {"false", 0, is_bool<0>},
    {"float", 0, is_kind<Kind::kFloat>},
    {"ge", 1, compares<CompareOp::kGe>},
    {"greaterthan", 1, compares<CompareOp::kGt>},
    {"gt", 1, compares<CompareOp::kGt>},
    {"in", 1, compares<CompareOp::kIn>},
    {"integer", 0, is_kind<Kind::kInt>},
    {"iterable", 0, is_iterable},
    {"le", 1, compares<CompareOp::kLe>},
    {"lessthan", 1, compares<CompareOp::kLt>},
    {"lt", 1, compares<CompareOp::kLt>},
    {"mapping", 0, is_kind<Kind::kDict>},
    {"ne", 1, compares<CompareOp::kNe>},
    {"none", 0, is_kind<Kind::kNone>},
    {"number", 0, is_number},
    {"odd", 0, is_parity<1>},
    {"sameas", 1, is_same},
    {"sequence", 0, is_sequence},
    {"string", 0, is_kind<Kind::kString>},
    {"true", 0, is_bool<1>},
    {"undefined", 0, is_kind<Kind::kUndefined>},
};

}  // namespace

const TestSpec* find_test(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTests), std::end(kTests),
                                         [&](const TestSpec& each) { return each.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace specd::jinja
