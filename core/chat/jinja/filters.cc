#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "core/base/utf8.h"
#include "core/chat/jinja/builtins.h"
#include "core/chat/jinja/lookup.h"
#include "core/chat/jinja/operators.h"
#include "core/chat/jinja/python_text.h"
#include "core/chat/jinja/text_methods.h"

namespace specd::jinja {
namespace {

// The argument, or `fallback` when it was omitted.
const Value& or_else(const Value* argument, const Value& fallback) {
  return argument != nullptr ? *argument : fallback;
}
const Value& or_none(const Value* argument) {
  static const Value none;
  return or_else(argument, none);
}
bool is_set(const Value* argument) { return argument != nullptr && truth(*argument); }

// soft_str() for filters that change the text. Refuses text marked safe.
Result<MarkedText> text_of(const Value& value, Budget& budget) {
  if (value.is_string() && value.as_string().is_safe) {
    return Status(Code::kUnsupported, "this filter on a string marked safe is not supported");
  }
  return str(value, budget);
}

template <Result<MarkedText> (*kChange)(const MarkedText&)>
Result<Value> change_case(const Value& value, Arguments, Budget& budget) {
  SPECD_TRY(const MarkedText text, text_of(value, budget));
  SPECD_TRY(MarkedText changed, kChange(text));
  return make_string(std::move(changed), budget);
}

Result<Value> trim(const Value& value, Arguments arguments, Budget& budget) {
  SPECD_TRY(const MarkedText text, text_of(value, budget));
  return strip_text(text, or_none(arguments[0]), true, true, budget);
}

Result<Value> length_of(const Value& value, Arguments, Budget& budget) {
  if (value.is_string()) SPECD_JINJA_BYTES(budget, value.bytes().size());  // counts characters
  SPECD_TRY(const int64_t n, length(value));
  return Value::integer(n);
}

Result<Value> string(const Value& value, Arguments, Budget& budget) {
  if (value.is_string()) return value;
  SPECD_TRY(MarkedText text, str(value, budget));
  return make_string(std::move(text), budget);
}

Result<Value> safe(const Value& value, Arguments, Budget& budget) {
  SPECD_TRY(MarkedText text, str(value, budget));
  auto object = std::make_shared<StringObject>(std::move(text));
  object->is_safe = true;
  return Value::object(Kind::kString, std::move(object));
}

Result<Value> fall_back(const Value& value, Arguments arguments, Budget&) {
  if (!value.is_undefined() && !(is_set(arguments[1]) && !truth(value))) return value;
  static const Value empty = Value::string("");
  return or_else(arguments[0], empty);
}

Result<Value> replace(const Value& value, Arguments arguments, Budget& budget) {
  SPECD_TRY(const MarkedText text, str(value, budget));
  SPECD_TRY(const MarkedText old, str(*arguments[0], budget));
  SPECD_TRY(const MarkedText with, str(*arguments[1], budget));
  const Value& count = or_none(arguments[2]);
  if (!count.is(Kind::kNone) && !count.is_integer()) return type_error("count is not a number");
  return replace_text(text, old.bytes(), with, count.is(Kind::kNone) ? -1 : count.as_int(), budget);
}

Result<Value> join(const Value& value, Arguments arguments, Budget& budget) {
  MarkedText separator;
  if (arguments[0] != nullptr) {
    SPECD_TRY(separator, str(*arguments[0], budget));
  }
  SPECD_TRY(const std::vector<Value> items, items_of(value, budget));
  MarkedText out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      SPECD_JINJA_BYTES(budget, cost_of(separator));
      out.append(separator);
    }
    SPECD_TRY(const Value item, get_path(items[i], or_none(arguments[1]), nullptr, budget));
    SPECD_OK_OR_RETURN(append_str(item, out, budget));
  }
  return make_string(std::move(out), budget);
}

Result<Value> list(const Value& value, Arguments, Budget& budget) {
  SPECD_TRY(std::vector<Value> items, items_of(value, budget));
  return make_sequence(Kind::kList, std::move(items), budget);
}

Result<Value> first(const Value& value, Arguments, Budget& budget) {
  if (value.is(Kind::kIterator)) {
    IteratorObject& iterator = value.iterator();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
    SPECD_OK_OR_RETURN(iterator.error);
    return Value::undefined("No first item, sequence was empty.");
  }
  if (value.is_string() && value.text().size() > 0) {
    return make_string(value.text().part(0, utf8_step(value.bytes(), 0).bytes), budget);
  }
  SPECD_TRY(std::vector<Value> items, items_of(value, budget));
  if (items.empty()) return Value::undefined("No first item, sequence was empty.");
  return items.front();
}

Result<Value> last(const Value& value, Arguments, Budget& budget) {
  if (value.is(Kind::kIterator)) return type_error("'generator' object is not reversible");
  SPECD_TRY(std::vector<Value> items, items_of(value, budget));
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

Result<Value> reverse(const Value& value, Arguments, Budget& budget) {
  if (value.is_string()) {
    return get_slice(value, Value::none(), Value::none(), Value::integer(-1), budget);
  }
  SPECD_TRY(std::vector<Value> items, items_of(value, budget));
  std::reverse(items.begin(), items.end());
  // jinja2 turns a generator into a list; anything else becomes an iterator.
  if (value.is(Kind::kIterator)) {
    return make_sequence(Kind::kList, std::move(items), budget);
  }
  return make_iterator(std::move(items), Status());
}

Result<Value> items(const Value& value, Arguments, Budget& budget) {
  if (value.is_undefined()) return make_iterator({}, Status());
  if (!value.is(Kind::kDict)) return type_error("items of a value that is not a mapping");
  auto view = std::make_shared<ViewObject>();
  view->of = value;
  SPECD_TRY(std::vector<Value> pairs, items_of(Value::object(Kind::kView, view), budget));
  return make_iterator(std::move(pairs), Status());
}

// The key that sorting compares.
Result<Value> sort_key(const Value& item, const Value& path, bool case_sensitive, Budget& budget) {
  SPECD_TRY(const Value key, get_path(item, path, nullptr, budget));
  if (case_sensitive || !key.is_string()) return key;
  SPECD_JINJA_BYTES(budget, cost_of(key.text()));  // even if it cannot be lowered
  SPECD_TRY(MarkedText lower, to_lower(key.text()));
  return make_string(std::move(lower), budget);
}

struct Keyed {
  Value key;
  Value item;
};

// Stable, like Python's sorted(). Keys: all numbers or all strings.
Result<Value> sorted(std::vector<Keyed> items, bool is_reverse, Budget& budget) {
  uint64_t key_bytes = items.size();
  for (const Keyed& each : items) {
    if (items.size() == 1) break;
    if (each.key.is_undefined()) return undefined_error(each.key);
    const bool is_nan = each.key.is(Kind::kFloat) && std::isnan(each.key.as_double());
    if ((!each.key.is_string() && !each.key.is_number()) || is_nan) {
      return Status(Code::kUnsupported,
                    std::string("sorting by a ") + each.key.type_name() + " is not supported");
    }
    if (each.key.is_string() != items.front().key.is_string()) {
      return type_error("sorting strings and numbers together");
    }
    if (each.key.is_string()) key_bytes += each.key.text().size();
  }
  SPECD_JINJA_BYTES(budget, key_bytes * std::bit_width(items.size()));
  SPECD_JINJA_STEPS(budget, items.size() * std::bit_width(items.size()));
  Budget unlimited(Limits{.steps_max = ~uint64_t{0}, .bytes_max = ~uint64_t{0}});
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    const int sign = order(a.key, b.key, "<", unlimited).value();  // checked above
    return is_reverse ? sign > 0 : sign < 0;
  });
  std::vector<Value> out;
  out.reserve(items.size());
  for (Keyed& each : items) out.push_back(std::move(each.item));
  return make_sequence(Kind::kList, std::move(out), budget);
}

Result<Value> sort(const Value& value, Arguments arguments, Budget& budget) {
  const Value& path = or_none(arguments[2]);
  if (path.is_string()) {
    SPECD_JINJA_BYTES(budget, path.text().size());
    if (path.bytes().find(',') != std::string::npos) {
      return Status(Code::kUnsupported, "sorting by several attributes is not supported");
    }
  }
  SPECD_TRY(const std::vector<Value> items, items_of(value, budget));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    SPECD_TRY(Value key, sort_key(item, path, is_set(arguments[1]), budget));
    keyed.push_back({std::move(key), item});
  }
  return sorted(std::move(keyed), is_set(arguments[0]), budget);
}

Result<Value> dictsort(const Value& value, Arguments arguments, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is(Kind::kDict)) return type_error("dictsort of a value that is not a mapping");
  bool by_value = false;
  if (arguments[1] != nullptr) {
    const Value& by = *arguments[1];
    by_value = by.is_string() && by.bytes() == "value";
    if (!by_value && !(by.is_string() && by.bytes() == "key")) {
      return Status(Code::kInvalidArgument, R"(You can only sort by either "key" or "value")");
    }
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, entry] : value.dict().entries()) {
    SPECD_TRY(Value pair, make_sequence(Kind::kTuple, {key, entry}, budget));
    SPECD_TRY(Value by,
              sort_key(by_value ? entry : key, Value::none(), is_set(arguments[0]), budget));
    keyed.push_back({std::move(by), pair.with_origin(value.from_request())});
  }
  return sorted(std::move(keyed), is_set(arguments[2]), budget);
}

Result<Value> unique(const Value& value, Arguments arguments, Budget& budget) {
  SPECD_TRY(const std::vector<Value> items, items_of(value, budget));
  SPECD_JINJA_STEPS(budget, 4 * items.size());  // to remember one costs more than to look at it
  DictObject seen;
  std::vector<Value> out;
  for (const Value& item : items) {
    Result<Value> key = sort_key(item, or_none(arguments[1]), is_set(arguments[0]), budget);
    Status status = as_status(key);
    if (status.ok()) {
      const size_t before = seen.entries().size();
      status = seen.set(key.value(), Value::none(), budget);
      if (status.ok() && seen.entries().size() > before) out.push_back(item);
    }
    if (!status.ok()) return make_iterator(std::move(out), status);
  }
  return make_iterator(std::move(out), Status());
}

template <bool kMax>
Result<Value> extreme(const Value& value, Arguments arguments, Budget& budget) {
  SPECD_TRY(const std::vector<Value> items, items_of(value, budget));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Value best = items.front();
  SPECD_TRY(Value best_key, sort_key(best, or_none(arguments[1]), is_set(arguments[0]), budget));
  for (size_t i = 1; i < items.size(); ++i) {
    SPECD_TRY(Value key, sort_key(items[i], or_none(arguments[1]), is_set(arguments[0]), budget));
    SPECD_TRY(const int sign, order(key, best_key, kMax ? ">" : "<", budget));
    if (sign != (kMax ? 1 : -1)) continue;
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

// The cost of reading a number from the value: its text is copied and walked several times.
Status charge_number(const Value& value, Budget& budget) {
  if (value.is_string()) SPECD_JINJA_BYTES(budget, value.text().size() * 8);
  return Status();
}

Result<Value> to_int(const Value& value, Arguments arguments, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value);
  if (arguments[1] != nullptr && !(arguments[1]->is(Kind::kInt) && arguments[1]->as_int() == 10)) {
    return Status(Code::kUnsupported, "int with a base other than 10 is not supported");
  }
  SPECD_OK_OR_RETURN(charge_number(value, budget));
  const Value fallback = arguments[0] != nullptr ? *arguments[0] : Value::integer(0);
  double number = 0;
  const bool is_text = value.is_string();
  if (value.is_integer()) return Value::integer(value.as_int()).with_origin(value.from_request());
  if (is_text) {
    if (!is_ascii(value.bytes())) {
      return Status(Code::kUnsupported, "int of text beyond ASCII is not supported");
    }
    bool too_large = false;
    const auto whole = parse_int(value.bytes(), too_large);
    const bool from_request = !value.text().marks().empty();
    if (whole.has_value()) return Value::integer(*whole).with_origin(from_request);
    if (too_large) return Status(Code::kUnsupported, "int beyond 64 bits is not supported");
    const auto real = parse_float(value.bytes());
    if (!real.has_value() || !std::isfinite(*real)) return fallback;
    number = *real;
  } else if (value.is(Kind::kFloat)) {
    number = value.as_double();
    if (std::isnan(number)) return fallback;
    if (std::isinf(number)) {
      return Status(Code::kInvalidArgument, "cannot convert float infinity to integer");
    }
  } else {
    return fallback;
  }
  if (!(std::abs(number) < 9.2e18)) {
    return Status(Code::kUnsupported, "int beyond 64 bits is not supported");
  }
  const bool origin = is_text ? !value.text().marks().empty() : value.from_request();
  return Value::integer(static_cast<int64_t>(number)).with_origin(origin);
}

Result<Value> to_float(const Value& value, Arguments arguments, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value);
  SPECD_OK_OR_RETURN(charge_number(value, budget));
  if (value.is_number()) return Value::real(value.as_double()).with_origin(value.from_request());
  if (value.is_string()) {
    if (!is_ascii(value.bytes())) {
      return Status(Code::kUnsupported, "float of text beyond ASCII is not supported");
    }
    if (const auto real = parse_float(value.bytes())) {
      return Value::real(*real).with_origin(!value.text().marks().empty());
    }
  }
  return arguments[0] != nullptr ? *arguments[0] : Value::real(0);
}

Result<Value> absolute(const Value& value, Arguments, Budget&) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is(Kind::kFloat)) {
    return Value::real(std::abs(value.as_double())).with_origin(value.from_request());
  }
  if (value.is_integer()) return value.as_int() < 0 ? negate(value) : plus(value);
  return type_error(std::string("abs of a ") + value.type_name());
}

Result<Value> round_number(const Value& value, Arguments arguments, Budget&) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_number()) return type_error(std::string("round of a ") + value.type_name());
  const int64_t precision = arguments[0] != nullptr && arguments[0]->is_integer()
                                ? arguments[0]->as_int()
                            : arguments[0] != nullptr ? -1
                                                      : 0;
  if (precision < 0 || precision > 15) {
    return Status(Code::kUnsupported, "round with this precision is not supported");
  }
  const std::string_view method = arguments[1] != nullptr && arguments[1]->is_string()
                                      ? std::string_view(arguments[1]->bytes())
                                      : "common";
  const double number = value.as_double();
  if (method == "common") {
    if (value.is_integer()) return plus(value);
    if (!std::isfinite(number)) return value;
    if (precision == 0)
      return Value::real(std::nearbyint(number)).with_origin(value.from_request());
    char buffer[400];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), number);
    return Value::real(std::strtod(buffer, nullptr)).with_origin(value.from_request());
  }
  if (method != "ceil" && method != "floor") {
    return Status(Code::kInvalidArgument, "method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number * scale;
  if (!(std::abs(scaled) < 9e15)) {
    return Status(Code::kUnsupported, "round of a number this large is not supported");
  }
  // Goes through an integer, as in Python, so there is no negative zero.
  const auto whole =
      static_cast<int64_t>(method == "ceil" ? std::ceil(scaled) : std::floor(scaled));
  return Value::real(static_cast<double>(whole) / scale).with_origin(value.from_request());
}

Result<Value> to_json(const Value& value, Arguments arguments, Budget& budget) {
  JsonStyle style;
  style.ensure_ascii = is_set(arguments[0]);
  const Value& indent = or_none(arguments[1]);
  if (!indent.is(Kind::kNone)) {
    if (!indent.is_integer() && !indent.is_string()) return type_error("indent is no number");
    if (indent.is_integer() && indent.as_int() > 1000) {
      return Status(Code::kUnsupported, "an indent of more than 1000 is not supported");
    }
    if (indent.is_string()) SPECD_JINJA_BYTES(budget, indent.text().size());
    style.indent_from_request =
        indent.is_string() ? !indent.text().marks().empty() : indent.from_request();
    style.has_indent = true;
    style.indent =
        indent.is_string()
            ? indent.bytes()
            : std::string(static_cast<size_t>(std::max<int64_t>(indent.as_int(), 0)), ' ');
    style.item_separator = ",";
  }
  const Value& separators = or_none(arguments[2]);
  if (!separators.is(Kind::kNone)) {
    if (!separators.is_sequence() || separators.items().size() != 2 ||
        !separators.items()[0].is_string() || !separators.items()[1].is_string()) {
      return type_error("separators are not two strings");
    }
    for (const Value& each : separators.items()) {
      SPECD_JINJA_BYTES(budget, each.text().size());
      if (!each.text().marks().empty()) style.separators_from_request = true;
    }
    style.item_separator = separators.items()[0].bytes();
    style.key_separator = separators.items()[1].bytes();
  }
  style.sort_keys = is_set(arguments[3]);
  MarkedText out;
  SPECD_OK_OR_RETURN(append_json(value, style, out, budget));
  return make_string(std::move(out), budget);
}

// The line ends that str.splitlines() knows.
bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Result<Value> indent(const Value& value, Arguments arguments, Budget& budget) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_string()) return type_error(std::string("indent of a ") + value.type_name());
  SPECD_TRY(const MarkedText text, text_of(value, budget));
  MarkedText margin("    ", false);
  if (const Value* const width = arguments[0]; width != nullptr) {
    if (width->is_string()) {
      SPECD_JINJA_BYTES(budget, cost_of(width->text()));
      margin = width->text();
    } else if (width->is_integer() && width->as_int() <= 1000) {
      margin = MarkedText(
          std::string(static_cast<size_t>(std::max<int64_t>(width->as_int(), 0)), ' '), false);
    } else {
      return Status(Code::kUnsupported, "this width is not supported");
    }
  }
  const bool blank = is_set(arguments[2]);
  MarkedText out;
  if (is_set(arguments[1])) {
    SPECD_JINJA_BYTES(budget, cost_of(margin));
    out.append(margin);
  }
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (bool is_first = true;; is_first = false) {
    size_t end = begin;
    Utf8Step step{};
    while (end < bytes.size() && !is_line_end((step = utf8_step(bytes, end)).code_point)) {
      end += step.bytes;
    }
    if (!is_first) {
      SPECD_JINJA_STEPS(budget, 1);
      out.append("\n", false);
      if (blank || end > begin) {
        SPECD_JINJA_BYTES(budget, cost_of(margin));
        out.append(margin);
      }
    }
    out.append(text, begin, end);
    if (end == bytes.size()) break;
    begin = end + step.bytes;
    if (bytes[end] == '\r' && begin < bytes.size() && bytes[begin] == '\n') ++begin;
    // A "\r" at the very end and the "\n" that jinja2 appends are one line end.
    if (begin == bytes.size() && bytes[end] == '\r' && end + 1 == bytes.size()) break;
  }
  return make_string(std::move(out), budget);
}

const FilterSpec kFilters[] = {
    {"abs", {}, 0, absolute},
    {"capitalize", {}, 0, change_case<to_capitalized>},
    {"count", {}, 0, length_of},
    {"d", {"default_value", "boolean"}, 0, fall_back},
    {"default", {"default_value", "boolean"}, 0, fall_back},
    {"dictsort", {"case_sensitive", "by", "reverse"}, 0, dictsort},
    {"first", {}, 0, first},
    {"float", {"default"}, 0, to_float},
    {"indent", {"width", "first", "blank"}, 0, indent},
    {"int", {"default", "base"}, 0, to_int},
    {"items", {}, 0, items},
    {"join", {"d", "attribute"}, 0, join},
    {"last", {}, 0, last},
    {"length", {}, 0, length_of},
    {"list", {}, 0, list},
    {"lower", {}, 0, change_case<to_lower>},
    {"max", {"case_sensitive", "attribute"}, 0, extreme<true>},
    {"min", {"case_sensitive", "attribute"}, 0, extreme<false>},
    {"replace", {"old", "new", "count"}, 2, replace},
    {"reverse", {}, 0, reverse},
    {"round", {"precision", "method"}, 0, round_number},
    {"safe", {}, 0, safe},
    {"sort", {"reverse", "case_sensitive", "attribute"}, 0, sort},
    {"string", {}, 0, string},
    {"title", {}, 0, change_case<to_filter_title>},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, to_json},
    {"trim", {"chars"}, 0, trim},
    {"unique", {"case_sensitive", "attribute"}, 0, unique},
    {"upper", {}, 0, change_case<to_upper>},
};

}  // namespace

const FilterSpec* find_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [&](const FilterSpec& each) { return each.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace specd::jinja
