// YAML as a tree in which every node knows its place. Only yaml_reader.cc uses yaml-cpp.
//
// Stricter than YAML: one document in UTF-8, at most 1 MiB and 32 levels; keys are scalars, unique
// and at most 160 bytes; anchors, aliases, merge keys and explicit tags are refused because they
// hide where a value comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace specd::host {

struct YamlPlace {
  int line = 1, column = 1;  // from 1; the column counts bytes
  // What overrides the file here: "--set engine.threads". Null = the file.
  std::shared_ptr<const std::string> source;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  Kind kind = Kind::kNull;
  bool plain = false;           // a scalar without quotes: only those can be numbers
  std::string key;              // in a mapping
  YamlPlace key_place;          // in a list: the same as `place`
  YamlPlace place;              // of the value; of a null in a mapping: that of its key
  std::string value;            // of a scalar
  std::vector<YamlNode> items;  // of a list or mapping, in the order of the file

  // The item of this mapping with this key; null when absent.
  const YamlNode* find(std::string_view wanted) const;
};

constexpr uint64_t kYamlBytesMax = 1 << 20;
constexpr size_t kYamlDepthMax = 32;
// YAML reads keys of up to 1024 characters; printed, a control character takes six.
constexpr size_t kYamlKeyMax = 160;

inline bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

// "a.yaml:3:7", or what overrides the file.
std::string place_text(const std::string& file, const YamlPlace& place);
// The front of an error: "a.yaml:3:7: engine.threads: ". A source that already ends with the path
// does not repeat it: "--set engine.threads: ".
std::string error_front(const std::string& file, const YamlPlace& place, const std::string& path);

// A node together with its file and its path, for errors. Borrows all of them. The path is built
// only for an error: a file may have half a million nodes, each below long keys.
struct Value {
  const YamlNode& node;
  const std::string& file;
  const Value* parent = nullptr;
  std::string_view key = {};  // in a mapping
  size_t index = 0;           // in a list

  // A key of this mapping. One that is absent has its own path, but this mapping as its node.
  Value at(std::string_view name) const;
  Value item(size_t i) const { return {node.items[i], file, this, node.items[i].key, i}; }

  std::string path() const;   // "routes.r.drafter", "devices[0]"
  std::string found() const;  // "'x'", "text 'x'", "a list"
  // One line, "FILE:LINE:COLUMN: key.path: TEXT".
  Status error(const std::string& text) const { return error_at(node.place, text); }
  Status error_at(const YamlPlace& place, const std::string& text) const;
  Status not_expected(const std::string& expected) const;  // "expected `expected`, found ..."
};

// Refuses everything but one document: kInvalidArgument, "FILE:LINE:COLUMN: ...".
Result<YamlNode> parse_yaml(std::string_view text, const std::string& file);

// Plain scalars get their type from the YAML 1.2 core schema: `yes` is text, 0x1f and 0o17 are
// numbers. Refuses 010, because readers disagree about it, and numbers that do not fit a JSON
// number of 64 bits.
Result<Json> yaml_to_json(const Value& value);

}  // namespace specd::host
