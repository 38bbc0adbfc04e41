// The log of the daemon: one line per event, on standard error. Thread-safe.
#pragma once

#include <string_view>

namespace specd {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);  // the default is kInfo
void log(LogLevel level, std::string_view text);

}  // namespace specd
