#include "host/daemon/service_manager.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/quote.h"

namespace specd::host {
namespace {

constexpr uint64_t kLoadingUs = 120'000'000;  // for the next stage of loading
constexpr uint64_t kUsPerMs = 1000;
constexpr size_t kStatusBytesMax = 1000;
constexpr time_t kSendSeconds = 2;  // for what must not be lost

std::string take(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value != nullptr ? value : "";
  unsetenv(name);
  return text;
}

// 0 when it is no number.
uint64_t number_of(const std::string& text) {
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  return bad == std::errc() && end == text.data() + text.size() ? number : 0;
}

// A line of its own, whatever models and files are called, and short: systemd drops long messages whole.
std::string one_line(std::string line) {
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  if (line.size() <= kStatusBytesMax) return line;
  size_t end = kStatusBytesMax;
  const auto is_inside_character = [&] { return (line[end] & 0xc0) == 0x80; };
  while (end > 0 && is_inside_character()) --end;
  return line.substr(0, end) + "..";
}

}  // namespace

ServiceManager::ServiceManager() {
  const std::string path = take("NOTIFY_SOCKET");
  const std::string patience = take("WATCHDOG_USEC"), process = take("WATCHDOG_PID");
  if (path.empty()) return;
  if (path.size() >= sizeof(address_.sun_path) || (path[0] != '/' && path[0] != '@')) {
    log(LogLevel::kWarn, "NOTIFY_SOCKET: expected a path or @NAME, found " + quote(path, 200) +
                             "; nobody is told how specd is");
    return;
  }
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path, path.data(), path.size());
  if (path[0] == '@') address_.sun_path[0] = '\0';  // an abstract one
  address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = kSendSeconds, .tv_usec = 0};
  (void)setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (patience.empty()) return;
  if (!process.empty() && number_of(process) != static_cast<uint64_t>(getpid())) return;
  watchdog_us_ = number_of(patience);
  if (watchdog_us_ == 0) {
    log(LogLevel::kWarn, "WATCHDOG_USEC: expected a number of microseconds, found " +
                             quote(patience, 60) + "; there is no watchdog");
  }
}

void ServiceManager::loading(const std::string& what, double fraction) {
  // Few: a manager that is busy keeps some ten messages.
  const std::string stage =
      one_line(what) + ", " + std::to_string(static_cast<int>(fraction * 10) * 10) + " %";
  if (stage_ == stage) return;
  if (send("EXTEND_TIMEOUT_USEC=" + std::to_string(kLoadingUs) + "\nSTATUS=loading: " + stage,
           MSG_DONTWAIT)) {
    stage_ = stage;
  }
}

void ServiceManager::ready(const std::string& status) {
  const MutexLock lock(mutex_);
  if (!is_stopping_) send("READY=1\nSTATUS=" + one_line(status));
}

void ServiceManager::reloading() {
  const MutexLock lock(mutex_);
  if (is_stopping_) return;
  send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now_ns() / 1000) +
       "\nSTATUS=reading the configuration again");
}

void ServiceManager::stopping(const std::string& status) {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  send("STOPPING=1\nSTATUS=" + one_line(status));
}

void ServiceManager::beat(uint64_t step_age_ns) {
  if (watchdog_us_ > 0 && step_age_ns / 1000 < watchdog_us_) send("WATCHDOG=1", MSG_DONTWAIT);
}

std::chrono::milliseconds ServiceManager::watchdog_period() const {
  if (watchdog_us_ == 0) return std::chrono::milliseconds::max();
  return std::chrono::milliseconds(std::max<uint64_t>(1, watchdog_us_ / 2 / kUsPerMs));
}

bool ServiceManager::send(const std::string& state, int flags) {
  if (socket_.get() < 0) return true;
  const ssize_t n = sendto(socket_.get(), state.data(), state.size(), flags | MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(&address_), address_bytes_);
  if (n < 0 && errno != EAGAIN && !has_failed_.exchange(true)) {
    log(LogLevel::kWarn, std::string("NOTIFY_SOCKET: the service manager cannot be told how specd "
                                     "is: ") +
                             std::strerror(errno) + " (logged once)");
  }
  return n >= 0;
}

}  // namespace specd::host
