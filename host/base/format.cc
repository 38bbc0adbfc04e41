#include "host/base/format.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;

// A key that every YAML reads as this text without quotes.
bool is_plain_key(const std::string& key) {
  static const std::string kWords[] = {"null", "true", "false", "yes", "no",
                                       "on",   "off",  "y",     "n",   "nan"};
  std::string lower = key;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !key.empty() && std::isalpha(static_cast<unsigned char>(key[0])) != 0 &&
         std::all_of(key.begin(), key.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }) &&
         std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

// Characters that YAML does not take as they are, or takes for the end of a line.
bool must_escape(uint32_t c) {
  return (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe ||
         c == 0xffff;
}

// A value on one line: JSON is YAML, but for those, and for numbers that YAML 1.1 takes for text.
std::string flow(const Ordered& value) {
  std::string text;
  if (value.is_array()) {
    for (const Ordered& item : value) text += (text.empty() ? "" : ", ") + flow(item);
    return "[" + text + "]";
  }
  const std::string json = value.dump();
  if (value.is_number_float()) {
    const size_t exponent = json.find('e');
    const bool has_point = json.find('.') != std::string::npos || exponent == std::string::npos;
    return has_point ? json : json.substr(0, exponent) + ".0" + json.substr(exponent);
  }
  for (size_t at = 0; at < json.size();) {
    const Utf8Step step = utf8_step(json, at);
    if (must_escape(step.code_point)) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", step.code_point);
      text += escape;
    } else {
      text += json.substr(at, step.bytes);
    }
    at += step.bytes;
  }
  return text;
}

bool has_lines(const Ordered& value) {
  const auto has_parts = [](const Ordered& item) { return item.is_structured(); };
  return !value.empty() &&
         (value.is_object() ||
          (value.is_array() && std::any_of(value.begin(), value.end(), has_parts)));
}

void add(const Ordered& value, const std::string& indent, std::string& text) {
  const auto add_item = [&](const std::string& front, const Ordered& item) {
    text += indent + front;
    if (!has_lines(item)) {
      text += " " + flow(item) + "\n";
      return;
    }
    text += "\n";
    add(item, indent + "  ", text);
  };
  if (!has_lines(value)) {
    text += indent + flow(value) + "\n";
  } else if (value.is_array()) {
    for (const Ordered& item : value) add_item("-", item);
  } else {
    for (const auto& [key, item] : value.items())
      add_item((is_plain_key(key) ? key : flow(key)) + ":", item);
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
