// YAML as a tree whose every node knows its place. The one file that knows yaml-cpp.
//
// Stricter than YAML: one document in UTF-8, at most 1 MiB and 32 levels; keys are scalars, unique
// and at most 160 bytes; anchors, aliases, merge keys and explicit tags are refused, because they
// hide where a value comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"

namespace specd::host {

struct YamlPlace {
  int line = 1, column = 1;  // from 1; the column counts bytes
  // What was given instead of the file: "--set engine.threads". Null = the file.
  std::shared_ptr<const std::string> source;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  YamlPlace place;
  bool plain = false;  // a scalar without quotes: only those can be numbers
  std::string value;   // of a scalar
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  // in the order of the file

  // Null when absent. REQUIRES kMap
  const YamlNode* find(std::string_view key) const;
};

struct YamlNode::Entry {
  std::string key;
  YamlPlace place;
  YamlNode value;
};

constexpr uint64_t kYamlBytesMax = 1 << 20;
constexpr size_t kYamlDepthMax = 32;
// YAML reads keys of up to 1024 characters; printed, a control character takes six.
constexpr size_t kYamlKeyMax = 160;

// "a.yaml:3:7", or the place's own source.
std::string place_text(const std::string& file, const YamlPlace& place);
// What stands in front of an error: "a.yaml:3:7: engine.threads: ". A source that names the path
// already does not name it twice: "--set engine.threads: ".
std::string error_front(const std::string& file, const YamlPlace& place, const std::string& path);

// kInvalidArgument "FILE:LINE:COLUMN: ..." on anything else than one document.
Result<YamlNode> parse_yaml(std::string_view text, const std::string& file);

// A node as JSON. Plain scalars get their type from the YAML 1.2 core schema: `yes` is text, 0x1f
// and 0o17 are numbers; 010 is refused, since readers disagree about it, and so are numbers that a
// JSON number of 64 bits cannot hold. `path` names the node in errors.
Result<Json> yaml_to_json(const YamlNode& node, const std::string& file, const std::string& path);

}  // namespace specd::host
