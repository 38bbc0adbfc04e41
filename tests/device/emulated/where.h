// The place in a kernel from which an access comes, as the default argument Where::current().
#pragma once

#if !defined(__clang__) || __clang_major__ >= 16
#include <source_location>

namespace specd::emulated {
using Where = std::source_location;
}  // namespace specd::emulated
#else  // clang 14 has the built-ins, but not std::source_location
#include <cstdint>

namespace specd::emulated {

class Where {
 public:
  static constexpr Where current(const char* file = __builtin_FILE(),
                                 uint32_t line = __builtin_LINE(),
                                 uint32_t column = __builtin_COLUMN()) {
    return Where(file, line, column);
  }
  constexpr Where() = default;

  constexpr const char* file_name() const { return file_; }
  constexpr uint32_t line() const { return line_; }
  constexpr uint32_t column() const { return column_; }

 private:
  constexpr Where(const char* file, uint32_t line, uint32_t column)
      : file_(file), line_(line), column_(column) {}

  const char* file_ = "";
  uint32_t line_ = 0, column_ = 0;
};

}  // namespace specd::emulated
#endif
