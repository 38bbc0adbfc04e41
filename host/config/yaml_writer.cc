#include "host/config/yaml_writer.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace specd::host {
namespace {

// Words that a reader of YAML 1.1 or 1.2 does not take for text.
constexpr std::array<std::string_view, 9> kWords{"null", "true", "false", "yes", "no",
                                                 "on",   "off",  "y",     "n"};

bool is_plain(const std::string& text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr std::string_view kMore = "0123456789_/.+-:";
  if (text.empty() || (kLetters.find(text[0]) == std::string_view::npos && text[0] != '/'))
    return false;
  for (const char c : text)
    if (kLetters.find(c) == std::string_view::npos && kMore.find(c) == std::string_view::npos)
      return false;
  if (text.back() == ':') return false;
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

}  // namespace

std::string yaml_scalar(const Json& value) {
  if (value.is_string() && is_plain(value.get_ref<const std::string&>()))
    return value.get<std::string>();
  return value.dump();  // JSON is YAML
}

std::string yaml_flow(const Json& value) {
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + yaml_flow(item);
    return "[" + text + "]";
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items())
      text += (text.empty() ? "" : ", ") + yaml_scalar(key) + ": " + yaml_flow(item);
    return "{" + text + "}";
  }
  return yaml_scalar(value);
}

}  // namespace specd::host
