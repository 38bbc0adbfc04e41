#include "core/base/log.h"

#include <poll.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/quote.h"
#include "core/base/thread.h"

namespace specd {
namespace {

constexpr size_t kWaitingBytesMax = size_t{1} << 20;
// A pipe that is ready takes this much without blocking (PIPE_BUF).
constexpr size_t kWriteBytesMax = 4096;

// Drops the text when standard error is closed or nobody can read it any more.
void write_all(std::string_view text) {
  while (!text.empty()) {
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, -1) < 0 && errno != EINTR) return;
    const ssize_t n = write(STDERR_FILENO, text.data(), std::min(text.size(), kWriteBytesMax));
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR && errno != EAGAIN) {
      return;
    }
  }
}

thread_local bool is_log_thread = false;

class Output {
 public:
  void put(std::string text) {
    MutexLock lock(mutex_);
    if (!has_thread_) return write_all(text);
    // Its own thread adds only how many were lost, which must not be lost.
    if (waiting_bytes_ + text.size() > kWaitingBytesMax && !is_log_thread) {
      ++n_lost_;
      return;
    }
    const size_t bytes = text.size();
    waiting_.push_back(std::move(text));  // may find no memory; then nothing waits
    waiting_bytes_ += bytes;
    changed_.notify_one();
  }

  void start() {
    start_thread("specd-log", [this] { run(); }).detach();
    const MutexLock lock(mutex_);
    has_thread_ = true;
  }

  void flush(std::chrono::milliseconds limit) {
    const auto deadline = CondVar::Clock::now() + limit;
    MutexLock lock(mutex_);
    while (waiting_bytes_ > 0) {
      if (!written_.wait_until(lock, deadline)) return;
    }
  }

 private:
  void run() {
    is_log_thread = true;
    MutexLock lock(mutex_);
    while (true) {
      while (waiting_.empty()) changed_.wait(lock);
      const std::string text = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      write_all(text);
      lock.lock();
      waiting_bytes_ -= text.size();
      if (n_lost_ > 0) {
        const uint64_t n = std::exchange(n_lost_, 0);
        lock.unlock();
        log(LogLevel::kWarn,
            std::to_string(n) + " lines of the log were lost: nobody read standard error");
        lock.lock();
      }
      if (waiting_bytes_ == 0) written_.notify_all();
    }
  }

  Mutex mutex_;
  CondVar changed_, written_;
  bool has_thread_ SPECD_GUARDED_BY(mutex_) = false;
  std::deque<std::string> waiting_ SPECD_GUARDED_BY(mutex_);
  size_t waiting_bytes_ SPECD_GUARDED_BY(mutex_) = 0;  // with the text that is being written
  uint64_t n_lost_ SPECD_GUARDED_BY(mutex_) = 0;
};

// Never destroyed: the libraries of plugins may log until the process ends.
Output& output() {
  static Output* const instance = new Output;
  return *instance;
}

class OutputSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    const MutexLock lock(mutex_);
    formatter_->format(message, line);
    output().put(std::string(line.data(), line.size()));
  }
  void flush_() override {}

 private:
  Mutex mutex_;  // of the formatter, which keeps the time of the last line; keeps lines in order
};

spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("specd", std::make_shared<OutputSink>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(spdlog_level(level)); }
LogLevel log_level() {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    if (is_logged(level)) return level;
  }
  return LogLevel::kOff;
}
bool is_logged(LogLevel level) { return logger().should_log(spdlog_level(level)); }

void log(LogLevel level, std::string_view text) try {
  if (!is_logged(level)) return;
  // Text from outside must not be able to forge log lines.
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      line += ' ';
    } else {
      line += c;
    }
  }
  const bool is_plain =
      std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; });
  logger().log(spdlog_level(level), "{}", is_plain ? line : escaped(line));
} catch (const std::bad_alloc&) {
  // A line is not worth the process.
}

void say(std::string_view text) { output().put(std::string(text)); }

void start_log_thread() {
  output().start();
  // Registered before any plugin is loaded, so it runs after the destructors of their objects.
  std::atexit([] { flush_log(kLastWriteLimit); });
}

void flush_log(std::chrono::milliseconds limit) { output().flush(limit); }

}  // namespace specd
