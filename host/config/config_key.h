// One key of the configuration as data: what may stand there, what it means. config_keys.cc has the
// table of all keys, and everything that deals with keys is generated from it: the reader, --set and
// the environment, `specd serve --print-config`, the JSON Schema, the table of configs/README.md, shell
// completion, and the tests that spoil every key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

constexpr size_t kPathMax = 4095;  // bytes, Linux's PATH_MAX without the zero byte
constexpr int64_t kBytesValueMax = int64_t{1} << 50;

// A value of the file with its place and path. Borrows the node and the file's name.
class Value {
 public:
  Value(const YamlNode& node, const std::string& file, std::string path)
      : node_(&node), file_(&file), path_(std::move(path)) {}

  const YamlNode& node() const { return *node_; }
  const std::string& file() const { return *file_; }
  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;

  // A key of this mapping; one that is not there has its path at the place of the mapping.
  Value at(std::string_view key) const;
  Value item(size_t index) const;  // of this list. REQUIRES index < size

  // One line, "FILE:LINE:COLUMN: key.path: ..."; for an override, its origin replaces the place.
  Status error(const std::string& text) const { return error_at(node_->place, path_, text); }
  Status error_at(const YamlPlace& place, const std::string& path, const std::string& text) const;
  Status not_expected(const std::string& expected) const;  // "expected `expected`, found ..."
  std::string found() const;                               // "'x'", "text 'x'", "a list"

 private:
  const YamlNode* node_;
  const std::string* file_;
  std::string path_;
};

struct Key {  // NOLINT(bugprone-exception-escape): of nlohmann's
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
    kNamed,    // a mapping of names that the user gives to keys[0]
    kFree,     // a mapping of anything
  };

  std::string name;
  Type type = Type::kText;
  std::string meaning;      // what the README says of it
  std::string form;         // kText: what it looks like, in Markdown
  std::string pattern;      // kText: what a regular expression can say about it
  std::string when_absent;  // the default in words, where no value is the default
  Json fallback = nullptr;  // the default as a value; null = none
  bool is_required = false;
  int64_t min = 0, max = 0;          // kInteger, kBytes: the value; kList, kNamed: how many
  std::vector<std::string> choices;  // kChoice
  std::vector<Key> keys;
  std::vector<std::string> exclusive;  // kSection: at most one of these may be given
  std::string expected;                // kList, kPath: what is expected; kNamed: what is named
  std::string reserved;                // kNamed: a name that the engine refuses
  // Where the type does not say enough: replaces its reader.
  Result<std::string> (*read)(const Value&) = nullptr;

  const Key* find(std::string_view key_name) const;  // of `keys`; null when it is not there

  Key required() && { return is_required = true, std::move(*this); }
  Key absent(std::string when) && { return when_absent = std::move(when), std::move(*this); }
};

// Checks the value and gives it in normal form: paths absolute, sizes in bytes, a kNamed mapping
// as a list of [name, value] in the order of the file. Holds only what is there.
Result<Json> read_value(const Key& key, const Value& value);

// Text, quoted or not: not empty, no control characters.
Result<std::string> read_text(const Value& value);
// `path` made absolute; relative ones start at the file's folder, even for values given elsewhere.
Result<std::string> resolve_path(const Value& value, const std::string& path);

}  // namespace specd::host
