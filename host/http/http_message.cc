#include "host/http/http_message.h"

#include <cstdint>
#include <optional>

namespace specd::host {
namespace {

std::string_view value_of(const HttpFields& fields, std::string_view name) {
  for (const auto& [each, value] : fields) {
    if (each == name) return value;
  }
  return {};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "a b" of "a%20b"; a percent sign that is not followed by two digits stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      out += text[i];
    } else {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

// Takes "a" from "a/b", and leaves "b"; nothing once the rest is empty.
std::optional<std::string_view> next_segment(std::optional<std::string_view>& rest) {
  if (!rest.has_value()) return std::nullopt;
  const size_t end = rest->find('/');
  const std::string_view segment = rest->substr(0, end);
  rest = end == std::string_view::npos ? std::nullopt : std::optional(rest->substr(end + 1));
  return segment;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  return value_of(headers, name);
}

std::string_view HttpRequest::parameter(std::string_view name) const {
  return value_of(parameters, name);
}

std::string header_list(const std::vector<std::string>& names) {
  constexpr size_t kBytesMax = 1024;
  std::string list;
  for (const std::string& each : names) {
    if (!list.empty()) list += ", ";
    for (const char c : each) list += c > ' ' && c <= '~' && c != ',' ? c : '?';
    if (list.size() > kBytesMax) return list.substr(0, kBytesMax) + "...";
  }
  return list;
}

bool fits(const HttpRoute& route, std::string_view path, HttpFields& parameters) {
  HttpFields found;
  std::optional<std::string_view> pattern = route.path, rest = path;
  while (pattern.has_value() && rest.has_value()) {
    const std::string_view wanted = *next_segment(pattern), segment = *next_segment(rest);
    if (!wanted.starts_with('{')) {
      if (wanted != segment) return false;
      continue;
    }
    if (segment.empty()) return false;
    found.emplace_back(wanted.substr(1, wanted.size() - 2), percent_decoded(segment));
  }
  if (pattern.has_value() || rest.has_value()) return false;
  parameters = std::move(found);
  return true;
}

}  // namespace specd::host
