#include "host/config/config_print.h"

#include <strings.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "host/config/config_keys.h"

namespace specd::host {
namespace {

using Type = Key::Type;

// Whether every reader of YAML 1.1 or 1.2 takes it for text without quotes.
bool is_plain(const std::string& text) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  if (text.find_first_of(letters + "/") != 0 || text.ends_with(':') ||
      text.find_first_not_of(letters + "0123456789_/.+-:") != std::string::npos)
    return false;
  const char* const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  return std::none_of(std::begin(words), std::end(words),
                      [&](const char* word) { return strcasecmp(word, text.c_str()) == 0; });
}

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
        const std::string when = key.when_absent.empty() ? "none" : key.when_absent;
        lines_.emplace_back(std::string(indent, ' ') + "# " + key.name + ":", "default: " + when);
      } else if (key.type == Type::kSection) {
        line(indent, key.name + ":");
        this->section(key, *value, child, indent + 2);
      } else if (!value->empty() && key.type == Type::kNamed) {
        line(indent, key.name + ":");
        for (const Json& pair : *value) {
          const std::string& name = pair[0].get_ref<const std::string&>();
          line(indent + 2, yaml_flow(name) + ":");
          this->section(key.keys[0], pair[1], child == nullptr ? nullptr : child->find(name),
                        indent + 4);
        }
      } else if (!value->empty() && key.type == Type::kList && value->front().is_object()) {
        line(indent, key.name + ":");
        for (size_t i = 0; i < value->size(); ++i) {
          is_item_ = true;
          this->section(key.keys[0], (*value)[i], child == nullptr ? nullptr : &child->items[i],
                        indent + 4);
        }
      } else {
        const bool is_no_name = key.type == Type::kNamed && value->empty();
        entry(key.name, is_no_name ? Json::object() : *value, child, indent);
      }
    }
  }

 private:
  static constexpr size_t kColumnMax = 60;  // origins are aligned as far as here

  void line(size_t indent, const std::string& text, const std::string& origin = "") {
    std::string front(indent, ' ');
    if (std::exchange(is_item_, false)) front.replace(indent - 2, 1, "-");
    lines_.emplace_back(front + text, origin);
  }

  // In a plugin's configuration, each key has its own origin.
  void entry(const std::string& name, const Json& json, const YamlNode* node, size_t indent) {
    const std::string front = yaml_flow(name) + ":";
    if (!json.is_object() || json.empty()) {
      std::string origin = node == nullptr ? "default" : place_text(*file_, node->place);
      std::replace_if(origin.begin(), origin.end(), is_control, '?');
      return line(indent, front + " " + yaml_flow(json), origin);
    }
    line(indent, front);
    std::map<std::string_view, const YamlNode*> nodes;  // there may be many
    if (node != nullptr)
      for (const YamlNode& item : node->items) nodes[item.key] = &item;
    for (const auto& [key, item] : json.items()) entry(key, item, nodes[key], indent + 2);
  }

  const std::string* file_;
  std::vector<std::pair<std::string, std::string>> lines_;  // and their origins
  bool is_item_ = false;                                    // the next line begins an item
};

}  // namespace

std::string print_config(const Config& config) {
  Config copy = config;
  Printer printer(config.file);
  printer.section(config_keys(), save(keys_of(copy)), &config.root, 0);
  return printer.text();
}

std::vector<std::pair<std::string, std::string>> config_values(const Config& config) {
  Config copy = config;
  std::vector<std::pair<std::string, std::string>> values;
  const std::function<void(const std::string&, const Json&)> add = [&](const std::string& key,
                                                                       const Json& value) {
    if (!value.is_object() || value.empty())
      return values.emplace_back(key, yaml_flow(value)), void();
    for (const auto& [name, item] : value.items()) add(key.empty() ? name : key + "." + name, item);
  };
  add("", save(keys_of(copy)));
  return values;
}

std::string yaml_flow(const Json& value) {
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + yaml_flow(item);
    return "[" + text + "]";
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items())
      text += (text.empty() ? "" : ", ") + yaml_flow(key) + ": " + yaml_flow(item);
    return "{" + text + "}";
  }
  if (value.is_string() && is_plain(value.get_ref<const std::string&>()))
    return value.get<std::string>();
  return value.dump();  // JSON is YAML
}

}  // namespace specd::host
