// SPECD_CHECK aborts on a programming error and prints the place and the values. Never use it to
// check input from outside.
#pragma once

#include <string>

namespace specd {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace specd

#define SPECD_CHECK(condition, message)                                                 \
  do {                                                                                  \
    if (!(condition)) ::specd::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
