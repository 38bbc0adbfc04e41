#include "host/config/config_schema.h"

#include "core/base/words.h"
#include "host/config/config_keys.h"
#include "host/config/config_print.h"

namespace specd::host {
namespace {

using Type = Key::Type;
using OrderedJson = nlohmann::ordered_json;

constexpr char kNamePattern[] = "^[A-Za-z0-9_.-]{1,64}$";
constexpr char kTextPattern[] = "^[^\\u0000-\\u001f\\u007f]+$";
constexpr char kSizePattern[] = "^[1-9][0-9]*(KiB|MiB|GiB)?$";

std::string code(const std::string& text) { return "`" + text + "`"; }

// The default as a value; null when there is none, or when it is told elsewhere: by the keys of a
// section, or by the list of an item.
Json default_of(const Key& key) {
  if (key.is_required || key.type == Type::kSection || key.name.empty()) return nullptr;
  Json json = save(key);
  return json.is_array() && json.empty() ? Json() : json;
}

OrderedJson schema_of(const Key& key);

OrderedJson schema_of_section(const Key& key) {
  OrderedJson schema{{"type", "object"}};
  OrderedJson required = OrderedJson::array();
  OrderedJson properties = OrderedJson::object();
  for (const Key& one : key.keys) {
    if (one.is_required) required.push_back(one.name);
    properties[one.name] = schema_of(one);
  }
  if (!required.empty()) schema["required"] = required;
  if (!key.exclusive.empty()) {
    OrderedJson pairs = OrderedJson::array();
    for (size_t i = 0; i < key.exclusive.size(); ++i)
      for (size_t j = i + 1; j < key.exclusive.size(); ++j)
        pairs.push_back(
            {{"not", {{"required", OrderedJson::array({key.exclusive[i], key.exclusive[j]})}}}});
    schema["allOf"] = pairs;
  }
  schema["properties"] = properties;
  schema["additionalProperties"] = false;
  return schema;
}

// What a value may be: for editors, and in Markdown for people.
struct Allowed {
  OrderedJson schema;
  std::string words;
};

Allowed allowed_by(const Key& key) {
  switch (key.type) {
    case Type::kText:
      return {{{"type", "string"}, {"pattern", key.pattern}}, key.form};
    case Type::kName:
      return {{{"type", "string"}, {"pattern", kNamePattern}}, "a name"};
    case Type::kPath:
      return {{{"type", "string"}, {"maxLength", kPathMax}, {"pattern", kTextPattern}}, "a path"};
    case Type::kChoice: {
      std::vector<std::string> words;
      for (const std::string& one : key.choices) words.push_back(code(one));
      return {{{"enum", key.choices}}, joined(words)};
    }
    case Type::kInteger:
      return {{{"type", "integer"}, {"minimum", key.min}, {"maximum", key.max}},
              std::to_string(key.min) + " to " + std::to_string(key.max)};
    case Type::kShare:
      return {{{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}},
              "more than 0, at most 1"};
    case Type::kBoolean:
      return {{{"type", "boolean"}}, "`true`, `false`"};
    case Type::kBytes:
      return {{{"anyOf",
                {{{"type", "integer"}, {"minimum", key.min}, {"maximum", key.max}},
                 {{"type", "string"}, {"pattern", kSizePattern}}}}},
              "`512MiB`; KiB, MiB, GiB or plain bytes"};
    case Type::kSection:
      return {schema_of_section(key), "a mapping"};
    case Type::kList: {
      const Key& item = key.keys[0];
      OrderedJson schema{{"type", "array"}, {"items", schema_of(item)}};
      if (key.max > 0) schema.update({{"minItems", key.min}, {"maxItems", key.max}});
      return {schema, item.type == Type::kSection ? "a list" : "a list: " + allowed_by(item).words};
    }
    case Type::kNamed:
      return {{{"type", {"object", "null"}},
               {"propertyNames", {{"pattern", kNamePattern}, {"not", {{"const", key.reserved}}}}},
               {"maxProperties", key.max},
               {"additionalProperties", schema_of(key.keys[0])}},
              "a mapping"};
    case Type::kFree:
      return {{{"type", {"object", "null"}}}, "a mapping"};
  }
  return {};
}

OrderedJson schema_of(const Key& key) {
  OrderedJson schema;
  if (!key.meaning.empty()) schema["description"] = key.meaning;
  schema.update(allowed_by(key).schema);
  if (const Json value = default_of(key); !value.is_null()) schema["default"] = value;
  return schema;
}

// ---- for people --------------------------------------------------------------------------------

std::string default_text(const Key& key, const Key& parent) {
  const bool parent_is_optional =
      parent.type == Type::kSection && !parent.name.empty() && !parent.is_required;
  if (key.is_required) return parent_is_optional ? "required in " + code(parent.name) : "required";
  if (!key.when_absent.empty()) return key.when_absent;
  const Json value = default_of(key);
  if (value.is_null()) return "none";
  return code(value.is_string() ? value.get<std::string>() : yaml_flow(value));
}

}  // namespace

std::string config_schema() {
  OrderedJson schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                     {"title", "Configuration of specd"}};
  schema.update(schema_of(config_keys()));
  return schema.dump(2) + "\n";
}

std::string config_table() {
  std::string rows = "| key | value | default | meaning |\n| --- | --- | --- | --- |\n";
  for_each_key([&](const std::string& path, const Key& key, const Key& parent) {
    // A section whose keys all have defaults needs no row.
    if (key.name.empty() || (key.type == Type::kSection && key.when_absent.empty())) return;
    rows += "| " + code(path) + " | " + allowed_by(key).words + " | " + default_text(key, parent) +
            " | " + key.meaning + " |\n";
  });
  return rows;
}

std::vector<std::string> settable_keys() {
  std::vector<std::string> keys;
  for_each_key([&](const std::string& path, const Key& key, const Key&) {
    const bool is_fixed =
        path.find("[]") == std::string::npos && path.find(".NAME") == std::string::npos;
    if (is_fixed && key.type != Type::kSection) keys.push_back(path);
  });
  return keys;
}

}  // namespace specd::host
