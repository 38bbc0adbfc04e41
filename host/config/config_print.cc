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
  void section(const Key& section, const Json& values, const YamlNode* node, size_t indent) {
    for (const Key& key : section.keys) {
      const auto value = values.find(key.name);
      const YamlNode* child = node == nullptr ? nullptr : node->find(key.name);
      if (value == values.end()) {
        lines_.emplace_back(
            std::string(indent, ' ') + "# " + key.name + ":",
            "default: " + (key.when_absent.empty() ? std::string("none") : key.when_absent));
      } else if (key.type == Type::kSection) {
        line(indent, key.name + ":");
        this->section(key, *value, child, indent + 2);
      } else if (is_structs(key)) {
        structs(key, *value, child, indent);
      } else {
        entry(key.name, *value, child, indent);
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

  static bool is_structs(const Key& key) {
    return key.type == Type::kNamed ||
           (key.type == Type::kList && key.keys[0].type == Type::kSection);
  }

  void structs(const Key& key, const Json& values, const YamlNode* node, size_t indent) {
    const bool is_list = key.type == Type::kList;
    if (values.empty()) return line(indent, key.name + (is_list ? ": []" : ": {}"), origin(node));
    line(indent, key.name + ":");
    for (size_t i = 0; i < values.size(); ++i) {
      const YamlNode* child = nullptr;
      if (is_list) {
        is_item_ = true;
        if (node != nullptr) child = &node->items[i];
      } else {
        const std::string& name = values[i][0].get_ref<const std::string&>();
        line(indent + 2, yaml_scalar(name) + ":");
        if (node != nullptr) child = node->find(name);
      }
      section(key.keys[0], is_list ? values[i] : values[i][1], child, indent + 4);
    }
  }

  const std::string* file_;
  std::vector<std::pair<std::string, std::string>> lines_;  // and their origins
  bool is_item_ = false;                                    // the next line begins an item
};

}  // namespace

std::string print_config(const Config& config) {
  Printer printer(config.file);
  printer.section(config_keys(), save(config), &config.root, 0);
  return printer.text();
}

}  // namespace specd::host
