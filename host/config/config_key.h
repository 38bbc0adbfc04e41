// One key of the configuration as data: what its value may be, what it means, and the member that
// it fills. Everything that deals with keys is generated from the table in config_keys.cc: the
// reader, --set and the environment, `specd serve --print-config`, the JSON Schema, the table in
// configs/README.md, shell completion, and the tests that spoil every key.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

constexpr size_t kPathMax = 4095;  // bytes, Linux's PATH_MAX without the zero byte

struct Key {
  enum class Type {
    kText,
    kName,
    kPath,
    kChoice,
    kInteger,
    kShare,
    kBoolean,
    kBytes,
    kSection,  // a mapping of `keys`
    kList,     // of keys[0]
    kNamed,    // a mapping from names that the user gives to keys[0]
    kFree,     // a mapping of anything
  };

  std::string name;
  Type type = Type::kText;
  std::string meaning;      // as in the README
  std::string form;         // kText: what it looks like, in Markdown
  std::string pattern;      // kText: what a regular expression can say about it
  std::string when_absent;  // the default in words, where no value is the default
  bool is_required = false;
  int64_t min = 0, max = 0;          // kInteger, kBytes: the value; kList, kNamed: how many
  std::vector<std::string> choices;  // kChoice
  std::vector<Key> keys;
  std::vector<std::string> exclusive;  // kSection: at most one of these may be given
  std::string expected;                // kList, kPath: what is expected; kNamed: what is named
  std::string reserved;                // kNamed: a name that the engine refuses
  // Replaces the reader of the type where that does not check enough.
  Result<std::string> (*read)(const Value&) = nullptr;

  // The member of a scalar or kFree. Paths are absolute, sizes in bytes.
  std::function<void(const Json&)> set;
  std::function<Json()> get;
  // The members of a kList or kNamed, or of a kSection that may be absent. All items share `keys`:
  // store() moves what `keys` filled into item `index`, the last so far; show() copies an item to
  // where `keys` are bound and returns its name, or nothing when there is no such item.
  std::function<void(size_t index, const std::string& name)> store;
  std::function<std::optional<std::string>(size_t index)> show;

  const Key* find(std::string_view key_name) const;  // of `keys`; null when absent

  Key required() && { return is_required = true, std::move(*this); }
  Key absent(std::string when) && { return when_absent = std::move(when), std::move(*this); }
  Key read_by(Result<std::string> (*reader)(const Value&)) && {
    return read = reader, std::move(*this);
  }
};

// Checks the value and stores it in the members of the key. Absent keys keep their defaults.
Status read_value(const Key& key, const Value& value);

// The members as JSON: a kNamed mapping as a list of [name, value], to keep the order. Leaves out
// members that mean "not given"; null if the key itself is not given.
Json save(const Key& key);

// Text, quoted or not: not empty, no control characters.
Result<std::string> read_text(const Value& value);
// A name: what a request or a log line can carry.
Result<std::string> read_name(const Value& value);
// ID, or ID@VERSION.
Result<std::string> read_plugin_name(const Value& value);
// Makes `path` absolute. A relative one starts at the file's folder, even for overrides.
Result<std::string> resolve_path(const Value& value, const std::string& path);

}  // namespace specd::host
