#include "host/config/config_overrides.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <compare>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/base/words.h"

namespace specd::host {
namespace {

using Kind = YamlNode::Kind;
using Type = Key::Type;

// An index of a list, or a key of a mapping.
struct Step {
  std::optional<size_t> index;
  std::string key;

  auto operator<=>(const Step&) const = default;
};

struct Override {
  std::string source;  // "--set engine.threads"
  std::vector<Step> path;
  std::string value;
};

Status wrong(const std::string& source, const std::string& text) {
  return Status(Code::kInvalidArgument, source + ": " + text);
}

std::optional<size_t> read_index(std::string_view digits) {
  size_t index = 0;
  const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (bad != std::errc() || end != digits.data() + digits.size()) return {};
  return index;
}

// Without quotes where it needs none, so that an error does not repeat the path.
std::string shown(const std::string& name) {
  const std::string quoted = quote(name, 200);
  return quoted.size() == name.size() + 2 ? name : quoted;
}

// One step down the tree and the table. Null where there is nothing.
YamlNode* child_of(YamlNode* node, const Step& step) {
  if (node == nullptr || node->kind != (step.index ? Kind::kSequence : Kind::kMap)) return nullptr;
  if (step.index) return *step.index < node->items.size() ? &node->items[*step.index] : nullptr;
  const auto found = std::ranges::find(node->items, step.key, &YamlNode::key);
  return found == node->items.end() ? nullptr : &*found;
}
const Key* child_of(const Key* key, const Step& step) {
  if (key == nullptr) return nullptr;
  if (key->type == Type::kSection) return key->find(step.key);
  return key->type == Type::kList || key->type == Type::kNamed ? &key->keys[0] : nullptr;
}

// ---- --set -------------------------------------------------------------------------------------

// a.b[0]."c.d"=value: a dot before each key but the first.
Result<Override> read_set(const std::string& text) {
  if (utf8_error_offset(text) != std::string_view::npos)
    return wrong("--set", "expected UTF-8 in KEY=VALUE");
  const auto refuse = [&](const std::string& why) {
    return wrong("--set",
                 "expected KEY=VALUE such as engine.threads=2, found " + quote(text) + why);
  };
  Override made;
  size_t at = 0;
  do {
    Step step;
    if (at > 0 && text[at] == '[') {
      const size_t close = std::min(text.find(']', at), text.size());
      step.index = read_index(std::string_view(text).substr(at + 1, close - at - 1));
      if (!step.index)
        return refuse(": expected an index such as [0] at byte " + std::to_string(at));
      at = close + 1;
    } else {
      if (at > 0) ++at;  // the dot
      const bool is_quoted = text[at] == '"';
      const size_t begin = is_quoted ? at + 1 : at;
      const size_t end = text.find_first_of(is_quoted ? "\"" : ".[=", begin);
      if (is_quoted && end == std::string::npos) return refuse(": a quote is not closed");
      step.key = text.substr(begin, end - begin);
      if (step.key.empty()) return refuse("");
      at = begin + step.key.size() + (is_quoted ? 1 : 0);
    }
    made.path.push_back(std::move(step));
    if (at < text.size() && text[at] != '.' && text[at] != '[' && text[at] != '=')
      return refuse(": expected '.', '[' or '=' at byte " + std::to_string(at));
  } while (at < text.size() && text[at] != '=');
  if (at >= text.size()) return refuse("");
  made.source = "--set " + shown(text.substr(0, at));
  made.value = text.substr(at + 1);
  return made;
}

// ---- the environment ---------------------------------------------------------------------------

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The step that `word` means in `node` and `key`, which the tree and the table have here or not.
Result<Step> resolve(const std::string& source, const std::string& word, const YamlNode* node,
                     const Key* key) {
  if ((node != nullptr && node->kind == Kind::kSequence) ||
      (key != nullptr && key->type == Type::kList)) {
    const std::optional<size_t> index = read_index(word);
    if (!index)
      return wrong(source, "expected an index of the list, 0 for the first, found " + quote(word));
    return Step{.index = index, .key = ""};
  }
  const std::string wanted = lower(word);
  std::vector<std::string> same;
  if (node != nullptr && (key == nullptr || key->type != Type::kSection))
    for (const YamlNode& item : node->items)
      if (lower(item.key) == wanted) same.push_back(item.key);
  if (same.size() > 1)
    return wrong(source,
                 quote(word) + " is ambiguous (" + joined(same) + "); choose one with --set");
  return Step{.index = {}, .key = same.empty() ? wanted : same.front()};
}

Result<Override> read_variable(const std::string& variable, const Key& keys, YamlNode& root) {
  const size_t equal = std::min(variable.find('='), variable.size());
  const std::string name = variable.substr(0, equal);
  Override made{.source = shown(name), .path = {}, .value = {}};
  if (utf8_error_offset(variable) != std::string_view::npos)
    return wrong(made.source, "expected UTF-8");
  if (equal < variable.size()) made.value = variable.substr(equal + 1);
  YamlNode* node = &root;
  const Key* key = &keys;
  for (size_t at = std::string_view(kEnvironmentPrefix).size(); at <= name.size();) {
    const size_t end = std::min(name.find("__", at), name.size());
    const std::string word = name.substr(at, end - at);
    if (word.empty())
      return wrong(made.source,
                   "expected SPECD__KEY__KEY=VALUE such as SPECD__ENGINE__THREADS=2, found no key "
                   "between underscores");
    SPECD_TRY(Step step, resolve(made.source, word, node, key));
    node = child_of(node, step);
    key = child_of(key, step);
    made.path.push_back(std::move(step));
    at = end == name.size() ? end + 1 : end + 2;
  }
  return made;
}

// ---- the tree ----------------------------------------------------------------------------------

void set_place(YamlNode& node, const YamlPlace& place) {
  node.place = node.key_place = place;
  for (YamlNode& item : node.items) set_place(item, place);
}

size_t depth_of(const YamlNode& node) {
  size_t below = 0;
  for (const YamlNode& item : node.items) below = std::max(below, depth_of(item));
  return node.kind == Kind::kMap || node.kind == Kind::kSequence ? below + 1 : 0;
}

Status put(const Override& given, const Key& keys, YamlNode& root) {
  if (given.value.empty()) return wrong(given.source, "expected a value after '='");
  SPECD_TRY(YamlNode value, parse_yaml(given.value, given.source));
  if (given.path.size() + depth_of(value) > kYamlDepthMax)
    return wrong(given.source, "deeper than " + std::to_string(kYamlDepthMax) + " levels");
  const Step& last = given.path.back();
  const Key* key = &keys;
  const Key* holder = nullptr;  // of `key`
  bool in_sections = true;      // the path has no index and no name that the user gave
  for (const Step& step : given.path) {
    holder = key;
    key = child_of(holder, step);
    in_sections = in_sections && key != nullptr && holder->type == Type::kSection;
  }
  // Null removes a key, so that its default applies. Below a plugin's config it is a value; unknown
  // keys and new names go into the tree, and the reader refuses them.
  const bool removes = value.kind == Kind::kNull && key != nullptr && !last.index;

  const YamlPlace place{.source = std::make_shared<const std::string>(given.source)};
  YamlNode* node = &root;
  YamlNode* parent = nullptr;
  bool is_new = false;
  std::string path;  // of `node`
  for (const Step& step : given.path) {
    const Kind kind = step.index ? Kind::kSequence : Kind::kMap;
    if (node->kind == (step.index ? Kind::kMap : Kind::kSequence))
      return wrong(given.source, (path.empty() ? "the configuration" : quote(path)) + " is " +
                                     (step.index ? "a mapping; expected a key and no index"
                                                 : "a list; expected an index such as [0]"));
    parent = node;
    node = child_of(parent, step);
    is_new = node == nullptr;
    if (is_new) {
      if (removes && in_sections) return Status();  // it is not there
      if (parent->kind != kind) {  // nothing, or a value that becomes a list or mapping
        parent->kind = kind;
        parent->place = place;
      }
      const std::string n = std::to_string(parent->items.size());
      if (step.index.value_or(0) > parent->items.size())
        return wrong(given.source, "expected an index from 0 to " + n + " (" + n +
                                       " appends an item), found " + std::to_string(*step.index));
      node = &parent->items.emplace_back();
      node->key = step.key;
      set_place(*node, place);
    }
    path +=
        step.index ? "[" + std::to_string(*step.index) + "]" : (path.empty() ? "" : ".") + step.key;
  }
  if (removes && (!is_new || holder->type == Type::kSection)) {
    std::erase_if(parent->items, [&](const YamlNode& item) { return item.key == last.key; });
    return Status();
  }
  set_place(value, place);
  value.key = last.key;
  *node = std::move(value);
  return Status();
}

}  // namespace

Overrides overrides_of_process(std::vector<std::string> set) {
  Overrides overrides{.environment = {}, .set = std::move(set)};
  for (char** variable = environ; *variable != nullptr; ++variable)
    overrides.environment.emplace_back(*variable);
  return overrides;
}

Status apply_overrides(const Overrides& overrides, const Key& keys, YamlNode& root) {
  if (root.kind != Kind::kMap) return Status();
  std::vector<Override> variables;
  for (const std::string& variable : overrides.environment) {
    if (!variable.starts_with(kEnvironmentPrefix)) continue;
    SPECD_TRY(Override made, read_variable(variable, keys, root));
    variables.push_back(std::move(made));
  }
  // A whole section comes before the keys inside it, and an item before the next one.
  std::ranges::stable_sort(variables, {}, &Override::path);
  for (size_t i = 0; i < variables.size(); ++i) {
    if (i > 0 && variables[i].path == variables[i - 1].path)
      return wrong(variables[i].source, "the same key as " + variables[i - 1].source);
    SPECD_OK_OR_RETURN(put(variables[i], keys, root));
  }
  for (const std::string& text : overrides.set) {
    SPECD_TRY(const Override made, read_set(text));
    SPECD_OK_OR_RETURN(put(made, keys, root));
  }
  return Status();
}

}  // namespace specd::host
