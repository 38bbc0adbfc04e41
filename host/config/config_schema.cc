#include "host/config/config_schema.h"

#include <algorithm>

#include "core/base/words.h"
#include "host/config/config_keys.h"
#include "host/config/yaml_writer.h"

namespace specd::host {
namespace {

using Type = Key::Type;
using OrderedJson = nlohmann::ordered_json;

constexpr char kNamePattern[] = "^[A-Za-z0-9_.-]{1,64}$";
constexpr char kTextPattern[] = "^[^\\u0000-\\u001f\\u007f]+$";
constexpr char kSizePattern[] = "^[1-9][0-9]*(KiB|MiB|GiB)?$";

std::string code(const std::string& text) { return "`" + text + "`"; }

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

// What may stand as a value: for editors, and in Markdown for people.
struct Told {
  OrderedJson schema;
  std::string words;
};

Told told_of(const Key& key) {
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
      return {schema, item.type == Type::kSection ? "a list" : "a list: " + told_of(item).words};
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
  schema.update(told_of(key).schema);
  if (!key.fallback.is_null()) schema["default"] = key.fallback;
  return schema;
}

// ---- for people --------------------------------------------------------------------------------

std::string default_of(const Key& key, const Key& section) {
  const bool may_be_left_out =
      section.type == Type::kSection && !section.name.empty() && !section.is_required;
  if (key.is_required) return may_be_left_out ? "required in " + code(section.name) : "required";
  if (!key.when_absent.empty()) return key.when_absent;
  if (key.fallback.is_string()) return code(key.fallback.get<std::string>());
  if (!key.fallback.is_null()) return code(yaml_flow(key.fallback));
  return key.type == Type::kSection ? "" : "none";
}

void add_rows(const Key& section, const std::string& front, std::string& rows) {
  for (const Key& key : section.keys) {
    const std::string path = front + key.name;
    // A mapping whose keys all have defaults says nothing itself.
    if (key.type != Type::kSection || !key.when_absent.empty())
      rows += "| " + code(path) + " | " + told_of(key).words + " | " + default_of(key, section) +
              " | " + key.meaning + " |\n";
    if (key.type == Type::kSection) add_rows(key, path + ".", rows);
    if (key.type == Type::kNamed) add_rows(key.keys[0], path + ".NAME.", rows);
    if (key.type == Type::kList && key.keys[0].type == Type::kSection)
      add_rows(key.keys[0], path + "[].", rows);
  }
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
  add_rows(config_keys(), "", rows);
  return rows;
}

std::vector<std::string> settable_keys() {
  std::vector<std::string> keys;
  for_each_key([&](const std::string& path, const Key&) {
    const std::string front = path.substr(0, std::min(path.find("[]"), path.find(".NAME")));
    if (keys.empty() || keys.back() != front) keys.push_back(front);
  });
  return keys;
}

}  // namespace specd::host
