// A plain reading of JSON Schema 2020-12, as far as configs/specd.schema.json goes. Written from
// the specification and not from the code that writes the schema; a keyword it does not know is an
// error.
#pragma once

#include <regex>
#include <string>

#include "core/base/json.h"

namespace specd::host {

inline bool is_of_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == static_cast<double>(value.get<int64_t>()));
  ADD_FAILURE() << "unknown type " << type;
  return false;
}

inline size_t code_points(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// What `value` violates, or "".
inline std::string schema_violation(const Json& schema, const Json& value,
                                    const std::string& path = "") {
  const auto at = [&](const std::string& what) { return path + ": " + what; };
  for (const auto& [keyword, rule] : schema.items()) {
    if (keyword == "$schema" || keyword == "title" || keyword == "description" ||
        keyword == "default" || keyword == "additionalProperties") {
      continue;  // the last one: with properties, below
    } else if (keyword == "type") {
      bool is_one = false;
      for (const Json& type : rule.is_array() ? rule : Json::array({rule}))
        is_one = is_one || is_of_type(value, type);
      if (!is_one) return at("type " + rule.dump());
    } else if (keyword == "enum") {
      if (std::find(rule.begin(), rule.end(), value) == rule.end()) return at("enum");
    } else if (keyword == "const") {
      if (value != rule) return at("const");
    } else if (keyword == "not") {
      if (schema_violation(rule, value, path).empty()) return at("not " + rule.dump());
    } else if (keyword == "allOf") {
      for (const Json& one : rule)
        if (const auto why = schema_violation(one, value, path); !why.empty()) return why;
    } else if (keyword == "anyOf") {
      bool is_one = false;
      for (const Json& one : rule) is_one = is_one || schema_violation(one, value, path).empty();
      if (!is_one) return at("anyOf");
    } else if (keyword == "minimum") {
      if (value.is_number() && value < rule) return at("minimum");
    } else if (keyword == "maximum") {
      if (value.is_number() && value > rule) return at("maximum");
    } else if (keyword == "exclusiveMinimum") {
      if (value.is_number() && value <= rule) return at("exclusiveMinimum");
    } else if (keyword == "pattern") {
      if (value.is_string() &&
          !std::regex_search(value.get<std::string>(), std::regex(rule.get<std::string>())))
        return at("pattern");
    } else if (keyword == "maxLength") {
      if (value.is_string() && code_points(value) > rule.get<size_t>()) return at("maxLength");
    } else if (keyword == "items") {
      if (!value.is_array()) continue;
      for (size_t i = 0; i < value.size(); ++i)
        if (const auto why = schema_violation(rule, value[i], path + "[" + std::to_string(i) + "]");
            !why.empty())
          return why;
    } else if (keyword == "minItems") {
      if (value.is_array() && value.size() < rule.get<size_t>()) return at("minItems");
    } else if (keyword == "maxItems") {
      if (value.is_array() && value.size() > rule.get<size_t>()) return at("maxItems");
    } else if (keyword == "required") {
      if (!value.is_object()) continue;
      for (const Json& key : rule)
        if (!value.contains(key.get<std::string>())) return at("required " + key.dump());
    } else if (keyword == "properties") {
      if (!value.is_object()) continue;
      for (const auto& [key, one] : rule.items())
        if (value.contains(key))
          if (const auto why = schema_violation(one, value[key], path + "." + key); !why.empty())
            return why;
    } else if (keyword == "propertyNames") {
      if (!value.is_object()) continue;
      for (const auto& [key, one] : value.items())
        if (const auto why = schema_violation(rule, Json(key), path + "." + key); !why.empty())
          return why;
    } else if (keyword == "maxProperties") {
      if (value.is_object() && value.size() > rule.get<size_t>()) return at("maxProperties");
    } else {
      ADD_FAILURE() << "unknown keyword " << keyword;
      return at("unknown keyword " + keyword);
    }
  }
  if (value.is_object() && schema.contains("additionalProperties")) {
    const Json& more = schema["additionalProperties"];
    for (const auto& [key, one] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(key)) continue;
      if (more == Json(false)) return at("additionalProperties " + key);
      if (const auto why = schema_violation(more, one, path + "." + key); !why.empty()) return why;
    }
  }
  return "";
}

}  // namespace specd::host
