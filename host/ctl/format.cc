#include "host/ctl/format.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;

// A key that YAML reads as this text without quotes.
bool is_plain_key(const std::string& key) {
  static const std::string kWords[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  return !key.empty() && std::isalpha(static_cast<unsigned char>(key[0])) != 0 &&
         std::all_of(key.begin(), key.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }) &&
         std::find(std::begin(kWords), std::end(kWords), key) == std::end(kWords);
}

bool has_lines(const Ordered& value) {
  return !value.empty() &&
         (value.is_object() || (value.is_array() && (value[0].is_object() || value[0].is_array())));
}

// JSON is YAML, so what has no lines of its own stays as it is.
void add(const Ordered& value, const std::string& indent, std::string& text) {
  const auto add_item = [&](const std::string& front, const Ordered& item) {
    text += indent + front;
    if (!has_lines(item)) {
      text += " " + item.dump() + "\n";
      return;
    }
    text += "\n";
    add(item, indent + "  ", text);
  };
  if (!has_lines(value)) {
    text += indent + value.dump() + "\n";
  } else if (value.is_array()) {
    for (const Ordered& item : value) add_item("-", item);
  } else {
    for (const auto& [key, item] : value.items())
      add_item((is_plain_key(key) ? key : Ordered(key).dump()) + ":", item);
  }
}

}  // namespace

std::string object_text(const std::string& json, Format format) {
  if (format == Format::kJson) return json + "\n";
  std::string text = "---\n";
  add(Ordered::parse(json), "", text);
  return text;
}

}  // namespace specd::host
