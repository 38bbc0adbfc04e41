#include "host/compat/their_mapping.h"

#include <algorithm>
#include <utility>

#include "core/base/quote.h"
#include "core/base/words.h"

namespace specd::host {
namespace {

using Kind = YamlNode::Kind;

YamlNode scalar(std::string key, std::string value, const YamlPlace& place, bool is_plain) {
  YamlNode node;
  node.kind = Kind::kScalar;
  node.plain = is_plain;
  node.key = std::move(key);
  node.key_place = node.place = place;
  node.value = std::move(value);
  return node;
}

// What `parent` has under the key of `otherwise`, or else that.
YamlNode& below(YamlNode& parent, YamlNode otherwise) {
  const auto found = std::ranges::find(parent.items, otherwise.key, &YamlNode::key);
  if (found == parent.items.end()) return parent.items.emplace_back(std::move(otherwise));
  if (found->kind == Kind::kNull) *found = std::move(otherwise);
  return *found;
}

Key key_of(const char* name, Key::Type type) {
  Key key;
  key.name = name;
  key.type = type;
  key.set = [](const Json&) {};  // it only checks
  return key;
}

}  // namespace

YamlNode text_node(std::string key, std::string text, const YamlPlace& place) {
  return scalar(std::move(key), std::move(text), place, false);
}

YamlNode plain_node(std::string key, std::string value, const YamlPlace& place) {
  return scalar(std::move(key), std::move(value), place, true);
}

YamlNode mapping_node(std::string key, const YamlPlace& place) {
  YamlNode node = scalar(std::move(key), "", place, false);
  node.kind = Kind::kMap;
  return node;
}

YamlNode list_node(std::string key, const YamlPlace& place) {
  YamlNode node = mapping_node(std::move(key), place);
  node.kind = Kind::kSequence;
  return node;
}

YamlNode& mapping_below(YamlNode& parent, const std::string& key, const YamlPlace& place) {
  return below(parent, mapping_node(key, place));
}

YamlNode& list_below(YamlNode& parent, const std::string& key, const YamlPlace& place) {
  return below(parent, list_node(key, place));
}

void put_node(YamlNode& parent, YamlNode node) {
  const auto found = std::ranges::find(parent.items, node.key, &YamlNode::key);
  if (found == parent.items.end())
    parent.items.push_back(std::move(node));
  else
    *found = std::move(node);
}

Key whole_key(const char* name, int64_t min, int64_t max) {
  Key key = key_of(name, Key::Type::kInteger);
  key.min = min;
  key.max = max;
  return key;
}
Key boolean_key(const char* name) { return key_of(name, Key::Type::kBoolean); }
Key share_key(const char* name) { return key_of(name, Key::Type::kShare); }
Key text_key(const char* name) { return key_of(name, Key::Type::kText); }

std::string UnknownKeys::text() const {
  constexpr size_t kShownMax = 16;
  std::vector<Found> sorted = found;
  std::ranges::stable_sort(
      sorted, {}, [](const Found& key) { return std::pair(key.place.line, key.place.column); });
  std::vector<std::string> words;
  for (const Found& key : sorted) {
    if (words.size() == kShownMax) {
      words.push_back("and " + std::to_string(sorted.size() - kShownMax) + " more");
      break;
    }
    words.push_back(escaped(key.path) + " (" + std::to_string(key.place.line) + ":" +
                    std::to_string(key.place.column) + ")");
  }
  return joined(words);
}

Status TheirMapping::check(const Value& value) {
  return value.node.kind == Kind::kMap ? Status() : value.not_expected("a mapping");
}

std::optional<Value> TheirMapping::find(const char* key) {
  if (std::ranges::find(known_, key) == known_.end()) known_.emplace_back(key);
  const YamlNode* node = value_->node.find(key);
  if (node == nullptr || node->kind == Kind::kNull) return std::nullopt;
  return value_->at(key);
}

std::optional<Value> TheirMapping::find_any(const std::vector<const char*>& keys) {
  std::optional<Value> first;
  for (const char* key : keys)
    if (const std::optional<Value> found = find(key); found && !first) first.emplace(*found);
  return first;
}

Result<Value> TheirMapping::require(const char* key) {
  const std::optional<Value> found = find(key);
  if (!found) return value_->at(key).error("missing; it is required");
  return *found;
}

Result<std::optional<Value>> TheirMapping::find(const char* key, const Key& ours) {
  const std::optional<Value> found = find(key);
  if (found) SPECD_OK_OR_RETURN(read_value(ours, *found));
  return found;
}

Status TheirMapping::carry(const char* key, const Key& ours, YamlNode& to) {
  SPECD_TRY(const std::optional<Value> found, find(key, ours));
  if (!found) return Status();
  YamlNode node = found->node;
  node.key = ours.name;
  put_node(to, std::move(node));
  return Status();
}

Status TheirMapping::finish(UnknownKeys& unknown) const {
  const std::vector<YamlNode>& items = value_->node.items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (std::ranges::find(known_, items[i].key) != known_.end()) continue;
    const Value item = value_->item(i);
    if (unknown.are_errors)
      return item.error_at(items[i].key_place, "unknown key" + known_words(items[i].key, known_));
    unknown.add(item, items[i].key_place);
  }
  return Status();
}

}  // namespace specd::host
