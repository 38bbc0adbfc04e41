// SPECD_CHECK aborts on a programmer's error, with the place and the values. Input from outside is
// never checked with it.
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
