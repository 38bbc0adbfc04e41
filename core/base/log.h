// The log of the daemon: one line an event, to standard error. Thread-safe.
#pragma once

#include <string_view>

namespace specd {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);  // kInfo at the start
void log(LogLevel level, std::string_view text);

}  // namespace specd
