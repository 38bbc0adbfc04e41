#include "host/base/table.h"

#include <algorithm>
#include <cstdio>

#include "core/base/utf8.h"

namespace specd::host {
namespace {

size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string Table::text() const {
  if (rows_.size() < 2) return "";
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line = "  ";
    for (size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] - width(row[i]) + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fixed(value, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string percent(double fraction) { return fixed(fraction * 100, 1) + " %"; }

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const char32_t c = step.code_point;
    const bool is_shown = !is_hidden(c) || c == '\n' || c == '\t';
    if (step.kind != Utf8Step::Kind::kValid || !is_shown) {
      out += '?';
    } else {
      out += text.substr(at, step.bytes);
    }
    at += step.bytes;
  }
  return out;
}

}  // namespace specd::host
