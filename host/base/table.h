// Small things for terminals: aligned tables, sizes, and text that cannot steer the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specd::host {

class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  // REQUIRES as many cells as the header has.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // One line a row, columns aligned by characters; empty when no row was added.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(uint64_t bytes);       // "27.0 MiB"
std::string fixed(double value, int digits);  // "1.25"
std::string percent(double fraction);         // "87.5 %"
// Replaces invalid UTF-8, and control characters other than newline and tab, with '?': text of
// models and plugins goes to terminals.
std::string printable(std::string_view text);

}  // namespace specd::host
