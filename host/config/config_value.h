// One value of the configuration, with its place and path, and the ways to read it.
//
// Every error is one line, "FILE:LINE:COLUMN: key.path: expected ..., found ..."; a value given
// instead of the file's names its origin in place of FILE:LINE:COLUMN.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

constexpr size_t kNameMax = 64;
constexpr size_t kPathMax = 4095;          // bytes, Linux's PATH_MAX without the zero byte
constexpr size_t kPathComponentMax = 255;  // and its NAME_MAX
constexpr uint64_t kBytesValueMax = uint64_t{1} << 50;

// Borrows the node and the file's name.
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

  Status error(const std::string& text) const { return error_at(node_->place, path_, text); }
  Status error_at(const YamlPlace& place, const std::string& path, const std::string& text) const;
  Status not_expected(const std::string& expected) const;  // "expected `expected`, found ..."
  std::string found() const;                               // "'x'", "text 'x'", "a list"

 private:
  const YamlNode* node_;
  const std::string* file_;
  std::string path_;
};

// Text, quoted or not: not empty, no control characters.
Result<std::string> read_text(const Value& value);
// Letters, digits, '_', '-' and '.', at most 64: what a request or a log line can carry.
Result<std::string> read_name(const Value& value);
bool is_name(std::string_view text);
std::string name_rule();
// The number of the choice.
Result<size_t> read_choice(const Value& value, const std::vector<std::string>& choices);
Result<int64_t> read_integer(const Value& value, int64_t min, int64_t max);
// More than 0, at most 1.
Result<double> read_share(const Value& value);
Result<bool> read_boolean(const Value& value);
// Bytes: a whole number from 1 to kBytesValueMax, alone or with KiB, MiB or GiB.
Result<uint64_t> read_bytes(const Value& value);
// Absolute; relative ones are relative to the file's folder, wherever the value was given.
Result<std::string> read_path(const Value& value);
// The same of a folder that exists; `what` says in errors what it shall be.
Result<std::string> read_folder(const Value& value, const std::string& what);
// `path` as the file's folder has it, absolute.
Result<std::string> resolve_path(const Value& value, const std::string& path);

}  // namespace specd::host
