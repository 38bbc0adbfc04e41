// What a template may call: filters, tests and methods; and the writer of JSON.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

using Arguments = std::span<const Value* const>;  // by parameter; null when omitted

struct FilterSpec {
  std::string_view name;
  std::vector<std::string_view> parameters;  // without the piped value
  size_t required;
  Result<Value> (*apply)(const Value& value, Arguments arguments, Budget& budget);
};
struct TestSpec {
  std::string_view name;
  size_t arguments;
  Result<bool> (*apply)(const Value& value, Arguments arguments, Budget& budget);
};

// Null for an unknown name.
const FilterSpec* find_filter(std::string_view name);
const TestSpec* find_test(std::string_view name);

// Calls a bound method. The parser refuses calls of names that is_method_name() does not know.
bool is_method_name(std::string_view name);
using Keywords = std::vector<std::pair<std::string, Value>>;
Result<Value> call_method(const MethodObject& method, const std::vector<Value>& arguments,
                          const Keywords& keywords, Budget& budget);

// JSON as transformers' tojson writes it.
struct JsonStyle {
  bool ensure_ascii = false;
  bool has_indent = false;
  std::string indent;  // for one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool indent_from_request = false;
  bool separators_from_request = false;
  bool sort_keys = false;
};
Status append_json(const Value& value, const JsonStyle& style, MarkedText& out, Budget& budget);

}  // namespace specd::jinja
