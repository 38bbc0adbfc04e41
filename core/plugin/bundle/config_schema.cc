#include "core/plugin/bundle/config_schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/quote.h"

namespace specd {
namespace {

constexpr size_t kSchemaBytesMax = 64 * 1024;
constexpr int kDepthMax = 32;

constexpr std::string_view kTypes[] = {"object", "array",   "string", "integer",
                                       "number", "boolean", "null"};
constexpr std::string_view kKeywords[] = {
    "type",     "properties", "required", "additionalProperties",
    "enum",     "minimum",    "maximum",  "items",
    "minItems", "maxItems",   "title",    "description",
    "default",  "$schema"};

template <size_t N>
std::string join(const std::string_view (&words)[N]) {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

bool is_integral(const Json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return std::isfinite(number) && number == std::trunc(number) && std::fabs(number) <= 0x1p53;
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return is_integral(value);
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

// For messages: short, one line, never throws on bytes that are not UTF-8.
std::string show(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_string()) return "string " + quote(value.get_ref<const std::string&>(), 40);
  return value.dump();
}

std::string child_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

std::string show_path(const std::string& path) {
  return path.empty() ? std::string("the configuration") : quote(path);
}

// ---- the schema itself -----------------------------------------------------------------------

std::string schema_fault(const Json& schema, const std::string& path, int depth) {
  const std::string at = path.empty() ? std::string("the top") : quote(path);
  if (depth > kDepthMax) return at + ": nested deeper than " + std::to_string(kDepthMax);
  if (!schema.is_object()) return at + ": expected a schema object, found " + show(schema);
  for (const auto& [key, value] : schema.items()) {
    const auto expect = [&, k = key, v = &value](bool good, const char* what) {
      return good ? std::string()
                  : at + ": keyword " + quote(k) + " needs " + what + ", found " + show(*v);
    };
    std::string fault;
    if (key == "type") {
      fault = expect(value.is_string(), "one type name");
      if (fault.empty() && std::find(std::begin(kTypes), std::end(kTypes),
                                     value.get_ref<const std::string&>()) == std::end(kTypes)) {
        fault = at + ": type " + quote(value.get_ref<const std::string&>()) +
                " is not known; use one of " + join(kTypes);
      }
    } else if (key == "properties") {
      fault = expect(value.is_object(), "an object");
      if (fault.empty()) {
        for (const auto& [name, child] : value.items()) {
          fault = schema_fault(child, child_path(path, name), depth + 1);
          if (!fault.empty()) break;
        }
      }
    } else if (key == "required") {
      fault = expect(value.is_array() && std::all_of(value.begin(), value.end(),
                                                     [](const Json& v) { return v.is_string(); }),
                     "a list of strings");
    } else if (key == "additionalProperties") {
      if (!value.is_boolean()) fault = schema_fault(value, child_path(path, "*"), depth + 1);
    } else if (key == "enum") {
      fault = expect(value.is_array() && !value.empty(), "a list of values");
    } else if (key == "minimum" || key == "maximum") {
      fault = expect(value.is_number(), "a number");
    } else if (key == "items") {
      fault = schema_fault(value, path + "[]", depth + 1);
    } else if (key == "minItems" || key == "maxItems") {
      fault = expect(value.is_number_unsigned(), "a count");
    } else if (std::find(std::begin(kKeywords), std::end(kKeywords), key) == std::end(kKeywords)) {
      fault =
          at + ": keyword " + quote(key) + " is not supported; the host knows " + join(kKeywords);
    }
    if (!fault.empty()) return fault;
  }
  return std::string();
}

// ---- a value against a schema ----------------------------------------------------------------

std::string suggest(const std::string& key, const Json* properties) {
  if (properties == nullptr || properties->empty()) return "; no keys are known here";
  std::string best;
  size_t best_distance = std::max<size_t>(2, key.size() / 3) + 1;
  std::string known;
  for (const auto& [name, unused] : properties->items()) {
    known += (known.empty() ? "" : ", ") + name;
    if (key.size() > 64) continue;
    const size_t distance = edit_distance(key, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best.empty() ? "; known keys: " + known : "; did you mean " + quote(best) + "?";
}

// Exact also for integers that a double cannot hold; the package's own compares 2^63 as negative.
bool less(const Json& a, const Json& b) {
  if (!a.is_number_integer() || !b.is_number_integer()) return a.get<double>() < b.get<double>();
  if (a.is_number_unsigned()) {
    return b.is_number_unsigned() ? a.get<uint64_t>() < b.get<uint64_t>()
                                  : b.get<int64_t>() > 0 &&
                                        a.get<uint64_t>() < static_cast<uint64_t>(b.get<int64_t>());
  }
  if (!b.is_number_unsigned()) return a.get<int64_t>() < b.get<int64_t>();
  return a.get<int64_t>() < 0 || static_cast<uint64_t>(a.get<int64_t>()) < b.get<uint64_t>();
}

std::string value_fault(const Json& value, const Json& schema, const std::string& path);

std::string object_fault(const Json& value, const Json& schema, const std::string& path) {
  const auto properties = schema.find("properties");
  const auto additional = schema.find("additionalProperties");
  for (const auto& [key, child] : value.items()) {
    const std::string at = child_path(path, key);
    if (properties != schema.end() && properties->contains(key)) {
      std::string fault = value_fault(child, (*properties)[key], at);
      if (!fault.empty()) return fault;
    } else if (additional != schema.end() && additional->is_object()) {
      std::string fault = value_fault(child, *additional, at);
      if (!fault.empty()) return fault;
    } else if (additional == schema.end() || !additional->get<bool>()) {
      return "unknown key " + quote(at) +
             suggest(key, properties == schema.end() ? nullptr : &*properties);
    }
  }
  if (const auto required = schema.find("required"); required != schema.end()) {
    for (const Json& key : *required) {
      const auto& name = key.get_ref<const std::string&>();
      if (!value.contains(name)) return "key " + quote(child_path(path, name)) + " is missing";
    }
  }
  return std::string();
}

std::string array_fault(const Json& value, const Json& schema, const std::string& path) {
  const auto count = [&](const char* keyword, bool least) -> std::string {
    const auto limit = schema.find(keyword);
    if (limit == schema.end()) return std::string();
    const auto n = limit->get<uint64_t>();
    if (least ? value.size() >= n : value.size() <= n) return std::string();
    return show_path(path) + " has " + std::to_string(value.size()) + " items, expected at " +
           (least ? "least " : "most ") + std::to_string(n);
  };
  std::string fault = count("minItems", true);
  if (fault.empty()) fault = count("maxItems", false);
  const auto items = schema.find("items");
  for (size_t i = 0; fault.empty() && items != schema.end() && i < value.size(); ++i) {
    fault = value_fault(value[i], *items, path + "[" + std::to_string(i) + "]");
  }
  return fault;
}

std::string value_fault(const Json& value, const Json& schema, const std::string& path) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    const auto& name = type->get_ref<const std::string&>();
    if (!has_type(value, name)) {
      return show_path(path) + ": expected " + name + ", found " + show(value);
    }
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return show_path(path) + ": expected a finite number";
  }
  if (const auto allowed = schema.find("enum"); allowed != schema.end()) {
    if (std::find(allowed->begin(), allowed->end(), value) == allowed->end()) {
      std::string text = show_path(path) + ": expected one of ";
      for (const Json& one : *allowed) {
        if (&one != &allowed->front()) text += ", ";
        text += one.is_string() ? quote(one.get_ref<const std::string&>(), 40) : show(one);
      }
      return text + ", found " + show(value);
    }
  }
  if (value.is_number()) {
    const auto least = schema.find("minimum");
    const auto most = schema.find("maximum");
    if (least != schema.end() && less(value, *least)) {
      return show_path(path) + ": expected at least " + least->dump() + ", found " + show(value);
    }
    if (most != schema.end() && less(*most, value)) {
      return show_path(path) + ": expected at most " + most->dump() + ", found " + show(value);
    }
  }
  if (value.is_object()) return object_fault(value, schema, path);
  if (value.is_array()) return array_fault(value, schema, path);
  return std::string();
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

Result<ConfigSchema> ConfigSchema::parse(const char* text, const std::string& where) {
  if (text == nullptr) return ConfigSchema(Json{{"type", "object"}});
  const size_t length = strnlen(text, kSchemaBytesMax + 1);
  if (length > kSchemaBytesMax) {
    return Status(Code::kUnsupported, where + ": config_schema is longer than 65536 bytes");
  }
  auto parsed = parse_json(std::string_view(text, length), where + ": config_schema");
  if (!parsed.ok()) return parsed.status();
  Json schema = std::move(parsed).value();
  std::string fault = schema_fault(schema, "", 0);
  // A plugin's configuration is always an object.
  if (fault.empty() && schema.contains("type") && schema["type"] != "object") {
    fault = "the top: expected type 'object'";
  }
  if (!fault.empty()) {
    return Status(Code::kUnsupported, where + ": config_schema: " + fault);
  }
  schema["type"] = "object";
  return ConfigSchema(std::move(schema));
}

Status ConfigSchema::check(const Json& config, const std::string& where) const {
  std::string fault = value_fault(config, schema_, "");
  if (fault.empty()) return Status();
  return Status(Code::kInvalidArgument, where + ": " + fault);
}

}  // namespace specd
