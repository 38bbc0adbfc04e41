// The log of the daemon: one line per event, on standard error. Thread-safe.
//
// A line is written at once until start_log_thread(). From then on lines wait in a queue and a
// thread writes them, so that a pipe or terminal that nobody reads holds up no other thread. At
// most 1 MiB waits; lines that do not fit are counted, and the log says how many were lost as soon
// as there is room.
#pragma once

#include <chrono>
#include <string_view>

namespace specd {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);  // the default is kInfo
bool is_logged(LogLevel level);
LogLevel log_level();
// Drops the line when there is no memory for it.
void log(LogLevel level, std::string_view text);
// Text for the person who started the daemon, written as it is: progress, tables, the last words.
// Keeps its place among the lines.
void say(std::string_view text);

// How long a process that ends waits for a reader of standard error.
inline constexpr std::chrono::milliseconds kLastWriteLimit{500};

// Once, before other threads log. The thread never ends.
void start_log_thread();
// Returns when everything is written, or after `limit`.
void flush_log(std::chrono::milliseconds limit);

}  // namespace specd
