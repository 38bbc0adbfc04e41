// A mapping in a file of another program, read key by key: what it has becomes part of our
// configuration, in the tree and with its place, and what nobody asked for is unknown.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/config/config_key.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

// The keys of a file without a meaning here, and what becomes of them.
struct UnknownKeys {
  struct Found {
    YamlPlace place;
    std::string path;
  };
  bool are_errors = false;
  std::vector<Found> found = {};

  void add(const Value& value, const YamlPlace& place) { found.push_back({place, value.path()}); }
  // "a (2:1), b.c (7:3)", in the order of the file and at most 16 of them; "" for none.
  std::string text() const;
};

// ---- nodes of our tree --------------------------------------------------------------------------

YamlNode text_node(std::string key, std::string text, const YamlPlace& place);
// A number or boolean, as YAML writes it.
YamlNode plain_node(std::string key, std::string value, const YamlPlace& place);
YamlNode mapping_node(std::string key, const YamlPlace& place);
// The mapping of this key below `parent`, made if it is not there.
YamlNode& mapping_below(YamlNode& parent, const std::string& key, const YamlPlace& place);
YamlNode list_node(std::string key, const YamlPlace& place);
YamlNode& list_below(YamlNode& parent, const std::string& key, const YamlPlace& place);
// Replaces the item with the same key, if there is one.
void put_node(YamlNode& parent, YamlNode node);

// ---- keys of ours for a value of theirs: the name, and what the value may be ---------------------

Key whole_key(const char* name, int64_t min, int64_t max);
Key boolean_key(const char* name);
Key share_key(const char* name);
Key text_key(const char* name);

// ---- theirs -------------------------------------------------------------------------------------

class TheirMapping {
 public:
  // `value` outlives this.
  explicit TheirMapping(const Value& value) : value_(&value) {}
  TheirMapping(const TheirMapping&) = delete;
  TheirMapping& operator=(const TheirMapping&) = delete;

  // kInvalidArgument unless it is one.
  static Status check(const Value& value);

  const Value& value() const { return *value_; }
  // Null where the key is absent or null, which Python programs write for "not given". Either way
  // the key is known from here on.
  std::optional<Value> find(const char* key);
  // The first of these that is given: older spellings come after the newer one.
  std::optional<Value> find_any(const std::vector<const char*>& keys);
  Result<Value> require(const char* key);
  // The same, checked by `ours`.
  Result<std::optional<Value>> find(const char* key, const Key& ours);
  // Puts the value, checked, below `to` as `ours`. Nothing where the key is not given.
  Status carry(const char* key, const Key& ours, YamlNode& to);

  // Call last: tells `unknown` of the keys that nobody asked for, or refuses the first of them.
  Status finish(UnknownKeys& unknown) const;

 private:
  const Value* value_;
  std::vector<std::string> known_;
};

}  // namespace specd::host
