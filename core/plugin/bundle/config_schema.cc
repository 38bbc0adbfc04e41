#include "core/plugin/bundle/config_schema.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/base/quote.h"
#include "core/base/words.h"

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

std::string list(std::span<const std::string_view> words) {
  return joined({words.begin(), words.end()});
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

// For messages: short, on one line; does not throw on bytes that are not UTF-8.
std::string show(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_string()) return "string " + quote(value.get_ref<const std::string&>(), 40);
  return value.dump();
}

std::string child_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
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
                " is not known; use one of " + list(kTypes);
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
          at + ": keyword " + quote(key) + " is not supported; the host knows " + list(kKeywords);
    }
    if (!fault.empty()) return fault;
  }
  return std::string();
}

// ---- a value against a schema ----------------------------------------------------------------

Status wrong(const std::string& path, const std::string& text) {
  return Status(Code::kInvalidArgument, path, text);
}

Status unknown_key(const std::string& path, const std::string& key, const Json* properties) {
  std::vector<std::string> known;
  if (properties != nullptr)
    for (const auto& [name, unused] : properties->items()) known.push_back(name);
  return wrong(path, "unknown key " + quote(key) + known_words(key, known));
}

// Exact also for integers that a double cannot represent. nlohmann's own takes 2^63 for negative.
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

Status check_value(const Json& value, const Json& schema, const std::string& path);

Status check_object(const Json& value, const Json& schema, const std::string& path) {
  const auto properties = schema.find("properties");
  const auto additional = schema.find("additionalProperties");
  const Json* known = properties == schema.end() ? nullptr : &*properties;
  for (const auto& [key, child] : value.items()) {
    const std::string at = child_path(path, key);
    if (known != nullptr && known->contains(key)) {
      SPECD_OK_OR_RETURN(check_value(child, (*known)[key], at));
    } else if (additional != schema.end() && additional->is_object()) {
      SPECD_OK_OR_RETURN(check_value(child, *additional, at));
    } else if (additional == schema.end() || !additional->get<bool>()) {
      return unknown_key(at, key, known);
    }
  }
  if (const auto required = schema.find("required"); required != schema.end()) {
    for (const Json& key : *required) {
      const auto& name = key.get_ref<const std::string&>();
      if (!value.contains(name)) return wrong(path, "key " + quote(name) + " is missing");
    }
  }
  return Status();
}

Status check_array(const Json& value, const Json& schema, const std::string& path) {
  const auto count = [&](const char* keyword, const char* bound, bool least) -> Status {
    const auto limit = schema.find(keyword);
    if (limit == schema.end()) return Status();
    const auto n = limit->get<uint64_t>();
    if (least ? value.size() >= n : value.size() <= n) return Status();
    return wrong(path, std::string("expected ") + bound + " " + std::to_string(n) +
                           " items, found " + std::to_string(value.size()));
  };
  SPECD_OK_OR_RETURN(count("minItems", "at least", true));
  SPECD_OK_OR_RETURN(count("maxItems", "at most", false));
  const auto items = schema.find("items");
  if (items == schema.end()) return Status();
  for (size_t i = 0; i < value.size(); ++i)
    SPECD_OK_OR_RETURN(check_value(value[i], *items, path + "[" + std::to_string(i) + "]"));
  return Status();
}

Status check_value(const Json& value, const Json& schema, const std::string& path) {
  const auto refuse = [&](const std::string& expected) {
    return wrong(path, "expected " + expected + ", found " + show(value));
  };
  if (const auto type = schema.find("type"); type != schema.end()) {
    const auto& name = type->get_ref<const std::string&>();
    if (!has_type(value, name)) return refuse(name);
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return wrong(path, "expected a finite number");
  if (const auto allowed = schema.find("enum");
      allowed != schema.end() &&
      std::find(allowed->begin(), allowed->end(), value) == allowed->end()) {
    std::vector<std::string> words;
    for (const Json& one : *allowed)
      words.push_back(one.is_string() ? quote(one.get_ref<const std::string&>(), 40) : show(one));
    return refuse("one of " + joined(words));
  }
  if (value.is_number()) {
    const auto least = schema.find("minimum");
    const auto most = schema.find("maximum");
    if (least != schema.end() && less(value, *least)) return refuse("at least " + least->dump());
    if (most != schema.end() && less(*most, value)) return refuse("at most " + most->dump());
  }
  if (value.is_object()) return check_object(value, schema, path);
  if (value.is_array()) return check_array(value, schema, path);
  return Status();
}

}  // namespace

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

Status ConfigSchema::check(const Json& config) const { return check_value(config, schema_, ""); }

bool ConfigSchema::may_have(std::string_view path) const {
  const Json* at = &schema_;
  while (true) {
    const size_t end = path.find_first_of(".[");
    const std::string key(path.substr(0, end));
    if (key.empty()) return false;
    const bool is_index = key.find_first_not_of("0123456789]") == std::string::npos;
    const auto properties = at->find("properties");
    const auto others =
        at->find(is_index && at->contains("items") ? "items" : "additionalProperties");
    if (properties != at->end() && properties->contains(key)) {
      at = &(*properties)[key];
    } else if (others != at->end() && others->is_object()) {
      at = &*others;
    } else {
      // What is below true is not described.
      return others != at->end() && others->get<bool>();
    }
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

}  // namespace specd
