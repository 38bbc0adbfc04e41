#include "host/config/config_overrides.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
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

constexpr size_t kShownMax = 200;

// A key of a mapping or an index of a list.
struct Step {
  std::string key;
  std::optional<size_t> index;

  bool operator==(const Step&) const = default;
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

// What is behind `list`[...] or `section`.key: null where the table knows nothing.
const Key* below(const Key* key, const Step& step) {
  if (key == nullptr) return nullptr;
  if (key->type == Key::Type::kSection) return key->find(step.key);
  const bool is_parent = key->type == Key::Type::kList || key->type == Key::Type::kNamed;
  return is_parent && key->keys[0].type == Key::Type::kSection ? &key->keys[0] : nullptr;
}

// ---- --set -------------------------------------------------------------------------------------

// "a.b[0]."c.d"=value"; a path is steps parted by dots, an index needs none.
Result<Override> read_set(const std::string& text) {
  const std::string rule = "expected KEY=VALUE such as engine.threads=2, found " + quote(text);
  if (utf8_error_offset(text) != std::string_view::npos)
    return wrong("--set", "expected UTF-8 in KEY=VALUE");
  Override made;
  size_t at = 0;
  while (true) {
    if (at < text.size() && text[at] == '[' && !made.path.empty()) {
      const size_t close = text.find(']', at);
      const auto index = close == std::string::npos
                             ? std::nullopt
                             : read_index(std::string_view(text).substr(at + 1, close - at - 1));
      if (!index)
        return wrong("--set " + quote(text, kShownMax), "expected an index such as [0] at byte " +
                                                            std::to_string(at) + " of the path");
      made.path.push_back({.key = "", .index = index});
      at = close + 1;
    } else {
      if (!made.path.empty()) ++at;  // the dot
      std::string key;
      if (at < text.size() && text[at] == '"') {
        const size_t close = text.find('"', at + 1);
        if (close == std::string::npos) return wrong("--set", rule + ": a quote is not closed");
        key = text.substr(at + 1, close - at - 1);
        at = close + 1;
      } else {
        const size_t end = std::min(text.find_first_of(".[=", at), text.size());
        key = text.substr(at, end - at);
        at = end;
      }
      if (key.empty()) return wrong("--set", rule);
      made.path.push_back({.key = key, .index = {}});
    }
    if (at >= text.size() || text[at] == '=') break;
    if (text[at] != '.' && text[at] != '[')
      return wrong("--set", rule + ": expected '.', '[' or '=' at byte " + std::to_string(at));
  }
  if (at >= text.size()) return wrong("--set", rule);
  // Without quotes where there need be none: an error does not name the path twice.
  const std::string path = text.substr(0, at);
  const std::string shown = quote(path, kShownMax);
  made.source = "--set " + (shown.size() == path.size() + 2 ? path : shown);
  made.value = text.substr(at + 1);
  return made;
}

// ---- the environment ---------------------------------------------------------------------------

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The key that `word` means, here in `node` (null when there is none) and in the table.
Result<Step> resolve(const std::string& source, const std::string& word, const YamlNode* node,
                     const Key* key) {
  const bool is_list = node != nullptr && node->kind == Kind::kSequence;
  if (is_list || (key != nullptr && key->type == Key::Type::kList)) {
    const std::optional<size_t> index = read_index(word);
    if (!index)
      return wrong(source, "expected an index of the list, 0 for the first, found " + quote(word));
    return Step{.key = "", .index = index};
  }
  const std::string wanted = lower(word);
  if (key != nullptr && key->type == Key::Type::kSection) return Step{.key = wanted, .index = {}};
  std::vector<std::string> same;
  if (node != nullptr)
    for (const YamlNode::Entry& entry : node->entries)
      if (lower(entry.key) == wanted) same.push_back(entry.key);
  if (same.size() > 1)
    return wrong(source,
                 quote(word) + " is ambiguous (" + joined(same) + "); choose one with --set");
  return Step{.key = same.empty() ? wanted : same.front(), .index = {}};
}

Result<Override> read_variable(const std::string& variable, const Key& keys, const YamlNode& root) {
  const size_t equal = variable.find('=');
  Override made{.source = variable.substr(0, equal), .path = {}, .value = {}};
  if (equal != std::string::npos) made.value = variable.substr(equal + 1);
  const std::string rest = made.source.substr(sizeof(kEnvironmentPrefix) - 1);
  made.source = quote(made.source, kShownMax);
  made.source = made.source.substr(1, made.source.size() - 2);
  if (utf8_error_offset(variable) != std::string_view::npos)
    return wrong(made.source, "expected UTF-8");
  const YamlNode* node = &root;
  const Key* key = &keys;
  for (size_t at = 0; at <= rest.size();) {
    const size_t end = std::min(rest.find("__", at), rest.size());
    const std::string word = rest.substr(at, end - at);
    if (word.empty())
      return wrong(made.source,
                   "expected SPECD__KEY__KEY=VALUE such as SPECD__ENGINE__THREADS=2, found no key "
                   "between underscores");
    SPECD_TRY(Step step, resolve(made.source, word, node, key));
    key = below(key, step);
    if (node != nullptr)
      node = step.index ? (*step.index < node->items.size() ? &node->items[*step.index] : nullptr)
                        : node->find(step.key);
    made.path.push_back(std::move(step));
    if (end == rest.size()) break;
    at = end + 2;
  }
  return made;
}

// By name, indices by their value: a variable of a whole section comes before those inside it, and
// an item before the next one.
bool comes_before(const Override& a, const Override& b) {
  return std::lexicographical_compare(
      a.path.begin(), a.path.end(), b.path.begin(), b.path.end(), [](const Step& x, const Step& y) {
        return std::pair(x.index.value_or(0), x.key) < std::pair(y.index.value_or(0), y.key);
      });
}

// ---- the tree ----------------------------------------------------------------------------------

void set_place(YamlNode& node, const YamlPlace& place) {
  node.place = place;
  for (YamlNode& item : node.items) set_place(item, place);
  for (YamlNode::Entry& entry : node.entries) {
    entry.place = place;
    set_place(entry.value, place);
  }
}

YamlNode::Entry* find_entry(YamlNode& map, const std::string& key) {
  for (YamlNode::Entry& entry : map.entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

// Whether a key that the table knows stands in a section that is not there: nothing to take out.
bool is_out_already(const Override& given, const Key& keys, const YamlNode& root) {
  const Key* key = &keys;
  const YamlNode* node = &root;
  for (const Step& step : given.path) {
    if (step.index || key == nullptr || key->type != Key::Type::kSection) return false;
    key = below(key, step);
    if (node != nullptr && node->kind != Kind::kMap) node = nullptr;
    if (node != nullptr) node = node->find(step.key);
  }
  return key != nullptr && node == nullptr;
}

Status put(const Override& given, const Key& keys, YamlNode& root) {
  if (given.path.size() > kYamlDepthMax)
    return wrong(given.source, "deeper than " + std::to_string(kYamlDepthMax) + " levels");
  if (given.value.empty()) return wrong(given.source, "expected a value after '='");
  SPECD_TRY(YamlNode value, parse_yaml(given.value, given.source));
  if (value.kind == Kind::kNull && is_out_already(given, keys, root)) return Status();
  YamlPlace place;
  place.source = std::make_shared<const std::string>(given.source);
  set_place(value, place);

  YamlNode* node = &root;
  YamlNode* parent = nullptr;
  const Key* key = &keys;
  const Key* holder = nullptr;  // what the table says of `parent`
  bool is_new = false;          // nothing was at the end of the path
  bool is_free = false;         // below what the table knows: there a null is a value
  std::string gone;             // the path up to `node`
  for (const Step& step : given.path) {
    const Kind kind = step.index ? Kind::kSequence : Kind::kMap;
    const Kind other = step.index ? Kind::kMap : Kind::kSequence;
    if (node->kind == other)
      return wrong(given.source, (gone.empty() ? "the configuration" : quote(gone)) + " is " +
                                     (step.index ? "a mapping; expected a key and no index"
                                                 : "a list; expected an index such as [0]"));
    if (node->kind != kind) {  // nothing, or a value that becomes a list or mapping
      *node = YamlNode();
      node->kind = kind;
      node->place = place;
    }
    is_free = is_free || key == nullptr || key->type == Key::Type::kFree;
    holder = key;
    key = below(key, step);
    parent = node;
    is_new = false;
    if (step.index) {
      gone += "[" + std::to_string(*step.index) + "]";
      if (const std::string n = std::to_string(node->items.size());
          *step.index > node->items.size())
        return wrong(given.source, "expected an index from 0 to " + n + " (" + n +
                                       " appends an item), found " + std::to_string(*step.index));
      if (*step.index == node->items.size()) node->items.emplace_back().place = place;
      node = &node->items[*step.index];
    } else {
      gone += (gone.empty() ? "" : ".") + step.key;
      YamlNode::Entry* entry = find_entry(*node, step.key);
      if (entry == nullptr) {
        node->entries.push_back({step.key, place, {}});
        entry = &node->entries.back();
        entry->value.place = place;
        is_new = true;
      }
      node = &entry->value;
    }
  }
  const Step& last = given.path.back();
  // Unknown names and keys stay, and the reader refuses them.
  const bool is_known = key != nullptr && (holder->type == Key::Type::kSection || !is_new);
  if (value.kind == Kind::kNull && !last.index && !is_free && is_known) {
    std::erase_if(parent->entries, [&](const auto& entry) { return entry.key == last.key; });
    return Status();
  }
  *node = std::move(value);
  if (!last.index) find_entry(*parent, last.key)->place = place;
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
  std::vector<Override> variables;
  for (const std::string& variable : overrides.environment) {
    if (!variable.starts_with(kEnvironmentPrefix)) continue;
    SPECD_TRY(Override made, read_variable(variable, keys, root));
    variables.push_back(std::move(made));
  }
  std::sort(variables.begin(), variables.end(), comes_before);
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
