// The subset of JSON Schema with which factories describe their configuration.
//
//   type (one word), properties, required, additionalProperties, enum, minimum, maximum, items,
//   minItems, maxItems; title, description, default and $schema are allowed and ignored.
//
// Differs from JSON Schema on purpose: additionalProperties is false unless stated, and a keyword
// outside this list refuses the schema, so that no constraint is silently ignored.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

class ConfigSchema {
 public:
  // `text` null: no keys are allowed. `where` names the schema in errors ("plugin 'p' factory
  // 'f'").
  static Result<ConfigSchema> parse(const char* text, const std::string& where);

  // kInvalidArgument: the field is the key's path below `config`, the message says what was
  // expected and found, and for an unknown key the nearest known one.
  Status check(const Json& config) const;

  // Whether a configuration may have a key at this path, as in errors or as plugins write it:
  // "tree.depth", "sizes[1]", "drafters.0.config".
  bool may_have(std::string_view path) const;

 private:
  explicit ConfigSchema(Json schema) : schema_(std::move(schema)) {}
  Json schema_;
};

}  // namespace specd
