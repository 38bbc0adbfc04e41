#include "host/daemon/daemon.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "host/rpc/grpc_server.h"
#include "host/daemon/health.h"
#include "host/http/http_server.h"
#include "host/base/table.h"
#include "host/base/unix_socket.h"
#include "host/version.h"

namespace specd::host {
namespace {

constexpr uint64_t kPollMs = 50;
constexpr std::chrono::milliseconds kFailurePoll{500};
constexpr uint64_t kAbortWaitMs = 5000;
constexpr std::chrono::seconds kFlushLimit{5};
constexpr std::chrono::seconds kTeardownLimit{15};  // at least; kFlushLimit included

// Writes without stdio, whose lock a hanging thread may hold, and only if the write cannot block.
[[noreturn]] void say_and_leave(const std::string& text) {
  pollfd standard_error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&standard_error, 1, 0) == 1) (void)!write(STDERR_FILENO, text.data(), text.size());
  _exit(kExitCut);
}

// Counts SIGTERM and SIGINT on its own thread; no code runs in a signal handler.
class StopSignals {
 public:
  StopSignals() {
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGUSR2}) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    thread_ = start_thread("specd-signals", [this] { run(); });
  }
  ~StopSignals() {
    leaving_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  }

  // Until this is called a signal ends the process at once: there is nothing to drain.
  void loaded() { loading_ = false; }
  // From here on a signal ends the process.
  void end_at_once() { drained_ = true; }
  // False when none came within `limit`.
  bool wait_for(std::chrono::milliseconds limit) {
    const auto deadline = CondVar::Clock::now() + limit;
    MutexLock lock(mutex_);
    while (count_ == 0) {
      if (!changed_.wait_until(lock, deadline)) return count_ > 0;
    }
    return true;
  }
  int count() {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  void run() {
    int number = 0;
    while (sigwait(&set_, &number) == 0) {
      if (leaving_) return;
      if (number == SIGUSR2) continue;
      if (loading_) _exit(128 + number);
      if (drained_) say_and_leave("specd: a signal while stopping; leaving at once\n");
      {
        const MutexLock lock(mutex_);
        ++count_;
      }
      changed_.notify_all();
    }
  }

  sigset_t set_;
  std::atomic<bool> loading_{true}, drained_{false}, leaving_{false};
  Mutex mutex_;
  CondVar changed_;
  int count_ SPECD_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

// Ends the process after `limit` if it still runs then: teardown calls into plugins, and a thread
// that hangs there can be neither joined nor destroyed. Also covers the destructors of plugin
// libraries, which run after main().
void end_within(std::chrono::seconds limit) {
  start_thread("specd-exit", [limit] {
    std::this_thread::sleep_for(limit);
    say_and_leave("specd: server and plugins did not stop within " + std::to_string(limit.count()) +
                  " s (does a plugin hang?); leaving without them\n");
  }).detach();
}

// Progress on standard error: one line rewritten on a terminal, one line a stage elsewhere.
class Progress {
 public:
  void report(const std::string& what, double fraction) {
    const int percent = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * 100);
    if (is_terminal_) {
      std::fprintf(stderr, "\r\033[K[%3d %%] %s", percent, printable(what).c_str());
      if (fraction >= 1) std::fputc('\n', stderr);
    } else if (what != last_) {
      std::fprintf(stderr, "loading: %s\n", printable(what).c_str());
    }
    last_ = what;
    open_line_ = is_terminal_ && fraction < 1;
  }
  void end() {
    if (open_line_) std::fputc('\n', stderr);
    open_line_ = false;
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool open_line_ = false;
  std::string last_;
};

void print_start(const Engine& engine, const Config& config) {
  Table memory({"memory", "bytes"});
  uint64_t total = 0;
  for (const MemoryLine& line : engine.memory()) {
    memory.add({line.what, bytes_text(line.bytes)});
    total += line.bytes;
  }
  memory.add({"total", bytes_text(total)});
  Table plugins({"plugin", "version", "state", "reason"});
  for (const PluginReport& plugin : engine.plugins())
    plugins.add({plugin.id, plugin.version, plugin_state_name(plugin.state), plugin.reason});
  Table routes({"route", "drafter", "verifier", "guarantee", "nodes", "state", "reason"});
  for (const RouteReport& route : engine.routes())
    routes.add({route.name() + (route.is_default ? " (default)" : ""), route.options.drafter.plugin,
                route.options.verifier.plugin, guarantee_name(route.options.guarantee),
                std::to_string(route.draft_nodes_max), route_state_name(route.state),
                with_place(config, route.refused.in_field("routes." + route.name())).text()});
  std::fputs(printable(memory.text() + plugins.text() + routes.text()).c_str(), stderr);
}

enum class Drained { kAll, kCut, kStuck };

// kAll: every request ended by itself. kCut: the rest was cancelled. kStuck: the step thread does
// not return, most likely from a plugin.
Drained drain(Engine& engine, GrpcServer& server, StopSignals& signals, uint32_t limit_seconds) {
  server.start_drain();
  const auto is_done = [&](uint64_t wait_ms) {
    if (!server.wait_prompts(std::chrono::milliseconds(wait_ms))) return false;
    engine.start_drain();  // not earlier: prompts that were rendered are still submitted
    return engine.wait_idle(wait_ms);
  };
  const uint64_t limit = now_ns() + uint64_t{limit_seconds} * 1'000'000'000;
  while (signals.count() < 2 && now_ns() < limit)
    if (is_done(kPollMs)) return Drained::kAll;
  if (is_done(0)) return Drained::kAll;
  engine.start_drain();
  const std::string why = signals.count() >= 2
                              ? "a second signal"
                              : "the drain limit of " + std::to_string(limit_seconds) + " s";
  log(LogLevel::kWarn, "cutting the requests that still run: " + why);
  server.abort_streams(
      Status(Code::kUnavailable, "specd stopped before the request ended (" + why + ")"));
  return engine.wait_idle(kAbortWaitMs) ? Drained::kCut : Drained::kStuck;
}

int fail(const Status& status) {
  std::fprintf(stderr, "specd: %s\n", printable(status.text()).c_str());
  return kExitFailed;
}

}  // namespace

int run_daemon(const Config& config) {
  StopSignals signals;
  set_log_level(config.log_level);
  const uint64_t start = now_ns();
  Result<SocketClaim> claim = SocketClaim::take(config.socket_path);
  if (!claim.ok()) return fail(claim.status());

  // Serves from here on, so that a probe can tell loading from dead, and a port that is taken is
  // found before the weights are read. Two threads: a scrape does not delay a probe.
  Health health(config.http ? config.http->stall_seconds : 0);
  std::unique_ptr<HttpServer> http;
  if (config.http) {
    auto started =
        HttpServer::start(config.http->address, config.http->port, health.routes(), {.threads = 2});
    if (!started.ok()) return fail(with_place(config, started.status().in_field("http.listen")));
    http = std::move(started).value();
    std::fprintf(stderr, "specd: metrics on http://%s/metrics\n", http->endpoint().c_str());
  }

  Progress progress;
  auto engine = Engine::create(config.engine, [&](const std::string& what, double fraction) {
    progress.report(what, fraction);
  });
  progress.end();
  if (!engine.ok()) return fail(with_place(config, engine.status()));
  auto server = GrpcServer::start(*engine.value(), config.socket_path, config.engine);
  if (!server.ok()) return fail(server.status());
  signals.loaded();
  health.loaded(*engine.value());
  print_start(*engine.value(), config);
  const EngineReport report = engine.value()->status();
  std::fprintf(stderr, "specd %s ready on unix:%s (%s, %d threads, %s, %.2f s)\n", kVersion,
               config.socket_path.c_str(), report.device.c_str(), report.threads,
               report.isa.c_str(), static_cast<double>(now_ns() - start) / 1e9);

  while (!signals.wait_for(kFailurePoll) && engine.value()->failure().ok()) {
  }
  const Status failure = engine.value()->failure();
  std::fprintf(stderr, failure.ok()
                           ? "specd: draining; a second signal stops at once\n"
                           : "specd: stopping, because nothing can be computed any more\n");
  health.draining();
  const Drained drained = drain(*engine.value(), *server.value(), signals, config.drain_seconds);
  const Status failed = engine.value()->failure();  // now, or while draining
  claim.value().remove_socket();
  if (drained == Drained::kStuck) {
    // Neither the server nor the engine could be joined.
    log(LogLevel::kError, "requests did not end " + std::to_string(kAbortWaitMs / 1000) +
                              " s after they were cut (does a plugin hang?); leaving without them");
    _exit(failed.ok() ? kExitCut : kExitFailed);
  }
  signals.end_at_once();
  end_within(std::max(kTeardownLimit, std::chrono::seconds(config.drain_seconds)));
  http.reset();
  server.value()->shutdown(kFlushLimit);
  server.value().reset();
  engine.value().reset();
  shut_down_plugins();
  if (!failed.ok()) return fail(failed);
  const bool cut = drained == Drained::kCut;
  std::fprintf(stderr, "specd: stopped%s\n", cut ? "; some requests were cut" : "");
  return cut ? kExitCut : kExitOk;
}

}  // namespace specd::host
