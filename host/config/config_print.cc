#include "host/config/config_print.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "host/config/config_keys.h"
#include "host/config/yaml_writer.h"

namespace specd::host {
namespace {

using Kind = YamlNode::Kind;
using Type = Key::Type;

class Printer {
 public:
  explicit Printer(const std::string& file) : file_(&file) {}

  std::string text() const {
    size_t widest = 0;
    for (const auto& [line, origin] : lines_)
      if (!origin.empty()) widest = std::max(widest, std::min(line.size(), kColumnMax));
    std::string text;
    for (const auto& [line, origin] : lines_) {
      text += line;
      if (!origin.empty())
        text += std::string(widest > line.size() ? widest - line.size() : 0, ' ') + "  # " + origin;
      text += '\n';
    }
    return text;
  }

  // `node` is what the file has for the section, or null.
  void section(const Key& section, const void* target, const YamlNode* node, size_t indent) {
    for (const Key& key : section.keys) {
      const YamlNode* child = node == nullptr ? nullptr : node->find(key.name);
      if (key.show) {
        value(key, key.show(target), child, indent);
      } else {
        mapping(key, target, child, indent);
      }
    }
  }

 private:
  static constexpr size_t kColumnMax = 60;  // origins stand below each other where they can

  void line(size_t indent, const std::string& text, const std::string& origin = "") {
    std::string front(indent, ' ');
    if (is_item_) front.replace(indent - 2, 1, "-");
    is_item_ = false;
    lines_.emplace_back(front + text, origin);
  }

  std::string origin(const YamlNode* node) const {
    if (node == nullptr) return "default";
    std::string text = place_text(*file_, node->place);
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return text;
  }

  void absent(const Key& key, size_t indent) {
    lines_.emplace_back(
        std::string(indent, ' ') + "# " + key.name + ":",
        "default: " + (key.when_absent.empty() ? std::string("none") : key.when_absent));
  }

  void value(const Key& key, const Json& json, const YamlNode* node, size_t indent) {
    if (json.is_null()) return absent(key, indent);
    entry(key.name, json, node, indent);
  }

  // What a plugin takes has an origin for each of its keys.
  void entry(const std::string& name, const Json& json, const YamlNode* node, size_t indent) {
    const std::string front = yaml_scalar(name) + ": ";
    if (!json.is_object() || json.empty())
      return line(indent, front + yaml_flow(json), origin(node));
    line(indent, yaml_scalar(name) + ":");
    std::map<std::string_view, const YamlNode*> nodes;  // there may be many
    if (node != nullptr && node->kind == Kind::kMap)
      for (const YamlNode::Entry& each : node->entries) nodes[each.key] = &each.value;
    for (const auto& [key, item] : json.items()) {
      const auto found = nodes.find(key);
      entry(key, item, found == nodes.end() ? nullptr : found->second, indent + 2);
    }
  }

  void mapping(const Key& key, const void* target, const YamlNode* node, size_t indent) {
    const std::vector<Key::Part> parts = key.parts(target);
    if (parts.empty() && key.type == Type::kSection) return absent(key, indent);
    if (parts.empty())
      return line(indent, key.name + (key.type == Type::kList ? ": []" : ": {}"), origin(node));
    line(indent, key.name + ":");
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& [name, part] = parts[i];
      if (key.type == Type::kSection) section(key, part, node, indent + 2);
      if (key.type == Type::kNamed) {
        line(indent + 2, yaml_scalar(name) + ":");
        section(key.keys[0], part, node == nullptr ? nullptr : node->find(name), indent + 4);
      }
      if (key.type == Type::kList) {
        is_item_ = true;
        section(key.keys[0], part, node == nullptr ? nullptr : &node->items[i], indent + 4);
      }
    }
  }

  const std::string* file_;
  std::vector<std::pair<std::string, std::string>> lines_;  // and their origins
  bool is_item_ = false;                                    // the next line begins an item
};

}  // namespace

std::string print_config(const Config& config) {
  Printer printer(config.file);
  printer.section(config_keys(), &config, &config.root, 0);
  return printer.text();
}

}  // namespace specd::host
