#include "host/config/config_key.h"

#include <algorithm>

#include "core/base/quote.h"
#include "core/base/words.h"

namespace specd::host {
namespace {

using Kind = YamlNode::Kind;

// The struct that a section's keys fill.
void* made(const Key& key, void* target, const std::string& label) {
  return key.make ? key.make(target, label) : target;
}

// Nothing unknown, nothing missing.
Status read_section(const Key& section, const Value& value, void* target) {
  if (value.node().kind != Kind::kMap) return value.not_expected("a mapping");
  for (const YamlNode::Entry& entry : value.node().entries) {
    if (section.find(entry.key) != nullptr) continue;
    std::vector<std::string> known;
    for (const Key& key : section.keys) known.push_back(key.name);
    return value.error_at(entry.place, value.path_of(entry.key),
                          "unknown key" + known_words(entry.key, known));
  }
  for (const Key& key : section.keys) {
    const Value one = value.at(key.name);
    if (value.node().find(key.name) != nullptr) {
      SPECD_OK_OR_RETURN(read_key(key, one, target));
    } else if (key.is_required) {
      return one.error("missing; it is required");
    }
  }
  std::string first;
  for (const std::string& name : section.exclusive) {
    if (value.node().find(name) == nullptr) continue;
    if (!first.empty())
      return value.at(name).error(section.exclusive_what + " is given already, as " + first +
                                  "; expected one of " + section.exclusive_words());
    first = name;
  }
  return Status();
}

Status read_list(const Key& list, const Value& value, void* target) {
  if (value.node().kind != Kind::kSequence) return value.not_expected("a list");
  for (size_t i = 0; i < value.node().items.size(); ++i)
    SPECD_OK_OR_RETURN(read_section(list.keys[0], value.item(i), made(list, target, "")));
  return Status();
}

Status read_named(const Key& named, const Value& value, void* target) {
  if (value.node().kind == Kind::kNull) return Status();
  if (value.node().kind != Kind::kMap) return value.not_expected("a mapping");
  if (value.node().entries.size() > static_cast<size_t>(named.max))
    return value.error("expected at most " + std::to_string(named.max) + ", found " +
                       std::to_string(value.node().entries.size()));
  for (const YamlNode::Entry& entry : value.node().entries) {
    if (!is_name(entry.key))
      return value.error_at(entry.place, value.path(),
                            "expected " + name_rule() + " as the name of " + named.element +
                                ", found " + quote(entry.key));
    const Value one(entry.value, value.file(), value.path_of(entry.key));
    SPECD_OK_OR_RETURN(read_section(named.keys[0], one, made(named, target, entry.key)));
  }
  return Status();
}

}  // namespace

const Key* Key::find(std::string_view key_name) const {
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [key_name](const Key& key) { return key.name == key_name; });
  return found == keys.end() ? nullptr : &*found;
}

std::string Key::exclusive_words() const {
  std::string words;
  for (size_t i = 0; i < exclusive.size(); ++i)
    words += (i == 0 ? "" : i + 1 == exclusive.size() ? " and " : ", ") + exclusive[i];
  return words;
}

Key make_key(const char* name, Key::Type type, const char* meaning) {
  Key key;
  key.name = name;
  key.type = type;
  key.meaning = meaning;
  return key;
}

Status read_key(const Key& key, const Value& value, void* target) {
  if (key.read) return key.read(value, target);
  if (key.type == Key::Type::kList) return read_list(key, value, target);
  if (key.type == Key::Type::kNamed) return read_named(key, value, target);
  return read_section(key, value, made(key, target, ""));
}

}  // namespace specd::host
