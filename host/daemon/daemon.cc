#include "host/daemon/daemon.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/last_words.h"
#include "core/base/mutex.h"
#include "core/base/run_within.h"
#include "core/base/thread.h"
#include "core/rank_process.h"
#include "host/config/config_print.h"
#include "host/rpc/grpc_server.h"
#include "host/rpc/tls.h"
#include "host/base/out_of_memory.h"
#include "host/daemon/health.h"
#include "host/daemon/reload.h"
#include "host/daemon/renewal.h"
#include "host/daemon/service_manager.h"
#include "host/daemon/stuck_threads.h"
#include "host/http/http_server.h"
#include "host/openai/error_answer.h"
#include "host/openai/front.h"
#include "host/triton/front.h"
#include "host/page/front.h"
#include "host/base/memory_table.h"
#include "host/base/table.h"
#include "host/base/task_queue.h"
#include "host/base/unix_socket.h"
#include "host/version.h"

namespace specd::host {
namespace {

constexpr uint64_t kPollMs = 50;
constexpr std::chrono::milliseconds kFailurePoll{500};
constexpr uint64_t kAbortWaitMs = 5000;
constexpr std::chrono::seconds kServerStartLimit{20};
constexpr std::chrono::seconds kFlushLimit{5};
constexpr std::chrono::seconds kTeardownLimit{15};  // at least; kFlushLimit included
constexpr std::chrono::seconds kLeadLimit{3};       // for the lead to end the other ranks

constexpr char kSignalOfMpirun[] =
    "SIGTERM, or a second signal, under mpirun, which also ends all ranks when one dies; one SIGUSR1 "
    "drains";

[[noreturn]] void leave(int code) {
  flush_log(kLastWriteLimit);
  expect_end();
  _exit(code);
}
[[noreturn]] void say_and_leave(const std::string& text, int code) {
  say(text);
  leave(code);
}

// Signals that end a process which does not handle them, but mean nothing to specd. SIGUSR2 wakes
// the thread of StopSignals.
std::vector<int> meaningless_signals() {
  std::vector<int> numbers = {SIGALRM, SIGVTALRM, SIGPROF, SIGUSR1,
                              SIGUSR2, SIGIO,     SIGPWR,  SIGSTKFLT};
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) numbers.push_back(number);
  return numbers;
}

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(number);
}

// Counts SIGTERM, SIGINT and SIGXCPU on its own thread, notes SIGHUP, and logs signals that mean nothing;
// no code runs in a signal handler. The thread is never joined: it also ends a process that hangs
// after main(). It runs from the start, because later no thread may be available.
//
// Under mpirun they count twice, so that nothing is drained: mpirun sends SIGTERM when a rank has died, and
// SIGKILL a second later. SIGUSR1, which mpirun passes on, drains instead.
class StopSignals {
 public:
  explicit StopSignals(bool is_under_mpirun) : is_under_mpirun_(is_under_mpirun) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // writing beyond a limit is an error like a full disk
    sigemptyset(&stop_);
    for (const int number : {SIGTERM, SIGINT, SIGXCPU}) sigaddset(&stop_, number);
    taken_ = stop_;
    if (is_default(SIGHUP)) sigaddset(&taken_, SIGHUP);  // nohup ignores it
    sigaddset(&taken_, SIGUSR2);
    for (const int number : meaningless_signals()) {
      if (is_default(number)) sigaddset(&taken_, number);  // a profiler handles its own
    }
    pthread_sigmask(SIG_BLOCK, &taken_, nullptr);
    thread_ = start_thread("specd-signals", [this] { run(); });
  }

  // Until this is called a signal ends the process at once: there is nothing to drain.
  void loaded() { loading_ = false; }
  // On a rank that follows: a signal leaves the lead this time to answer its clients.
  void follow() {
    follows_ = true;
    loading_ = false;
  }
  // From here on a signal ends the process. So does the time `limit`: teardown calls into plugins,
  // and a thread that hangs there can be neither joined nor destroyed. Also covers the destructors
  // of plugin libraries, which run after main(). `code`: the exit code then.
  void end_within(std::chrono::seconds limit, int code) {
    code_ = code;
    limit_seconds_ = limit.count();
    end_ns_ = now_ns() + static_cast<uint64_t>(std::chrono::nanoseconds(limit).count());
    pthread_kill(thread_.native_handle(), SIGUSR2);
  }
  // Whether one came. Waits so long for one, or for a SIGHUP.
  bool wait_for(std::chrono::milliseconds limit) {
    const auto deadline = CondVar::Clock::now() + limit;
    MutexLock lock(mutex_);
    while (count_ == 0 && !has_hangup_) {
      if (!changed_.wait_until(lock, deadline)) break;
    }
    return count_ > 0;
  }
  // Whether SIGHUP came since the last call.
  bool take_hangup() {
    const MutexLock lock(mutex_);
    return std::exchange(has_hangup_, false);
  }
  // [any] As a first SIGTERM, when there was none.
  void stop() {
    {
      const MutexLock lock(mutex_);
      count_ = std::max(count_, 1);
    }
    changed_.notify_all();
  }
  int count() {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  // False for what was set up before main().
  static bool is_default(int number) {
    struct sigaction now {};
    return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL;
  }

  void run() {
    std::set<int> logged;
    while (true) {
      const uint64_t now = now_ns(), end = end_ns_;
      if (end != 0 && now >= end && follows_) leave(128 + SIGTERM);
      if (end != 0 && now >= end)
        say_and_leave("specd: server and plugins did not stop within " +
                          std::to_string(limit_seconds_) +
                          " s (does a plugin hang?); leaving without them\n",
                      code_);
      const uint64_t rest_ns = end == 0 ? kPollNs : end - now;
      const timespec rest{.tv_sec = static_cast<time_t>(rest_ns / kSecondNs),
                          .tv_nsec = static_cast<long>(rest_ns % kSecondNs)};
      siginfo_t info{};
      const int number = sigtimedwait(&taken_, &info, &rest);
      if (number < 0) continue;                                    // the time is over
      if (number == SIGUSR2 && info.si_pid == getpid()) continue;  // from end_within()
      const bool drains = is_under_mpirun_ && number == SIGUSR1;
      if (drains && follows_) continue;
      if (number == SIGHUP) {
        {
          const MutexLock lock(mutex_);
          has_hangup_ = true;
        }
        changed_.notify_all();
        continue;
      }
      if (!drains && sigismember(&stop_, number) == 0) {
        if (logged.insert(number).second)
          log(LogLevel::kWarn, signal_name(number) +
                                   " was received and means nothing to specd; SIGTERM stops it "
                                   "(logged once)");
        continue;
      }
      if (loading_) leave(128 + number);
      if (follows_) {
        if (end_ns_ == 0) end_ns_ = now_ns() + kFollowerNs;
        continue;
      }
      if (end_ns_ != 0) say_and_leave("specd: a signal while stopping; leaving at once\n", code_);
      {
        const MutexLock lock(mutex_);
        count_ += is_under_mpirun_ && !drains ? 2 : 1;
      }
      changed_.notify_all();
    }
  }

  sigset_t stop_, taken_;
  static constexpr uint64_t kSecondNs = 1'000'000'000, kPollNs = 3600 * kSecondNs;
  static constexpr uint64_t kFollowerNs = 3 * kSecondNs;
  const bool is_under_mpirun_;
  std::atomic<bool> loading_{true}, follows_{false};
  std::atomic<int64_t> limit_seconds_{0};
  std::atomic<int> code_{kExitCut};
  std::atomic<uint64_t> end_ns_{0};  // 0 = not yet stopping
  Mutex mutex_;
  CondVar changed_;
  int count_ SPECD_GUARDED_BY(mutex_) = 0;
  bool has_hangup_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Progress on standard error: one line rewritten on a terminal, one line a stage elsewhere.
class Progress {
 public:
  void report(const std::string& what, double fraction) {
    const int percent = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * 100);
    if (is_terminal_) {
      char front[32];
      std::snprintf(front, sizeof(front), "\r\033[K[%3d %%] ", percent);
      say(front + printable(what) + (fraction >= 1 ? "\n" : ""));
    } else if (what != last_) {
      say("loading: " + printable(what) + "\n");
    }
    last_ = what;
    open_line_ = is_terminal_ && fraction < 1;
  }
  void end() {
    if (open_line_) say("\n");
    open_line_ = false;
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool open_line_ = false;
  std::string last_;
};

void print_start(const Engine& engine, const Config& config) {
  MemoryTable memory;
  for (const MemoryLine& line : engine.memory())
    memory.add(line.what, line.detail, line.held, line.planned);
  Table plugins({"plugin", "version", "state", "reason"});
  for (const PluginReport& plugin : engine.plugins())
    plugins.add({plugin.id, plugin.version, plugin_state_name(plugin.state), plugin.reason});
  Table routes({"route", "drafter", "verifier", "guarantee", "nodes", "state", "reason"});
  for (const RouteReport& route : engine.routes())
    routes.add({route.name() + (route.is_default ? " (default)" : ""), route.options.drafter.plugin,
                route.options.verifier.plugin, guarantee_name(route.options.guarantee),
                std::to_string(route.draft_nodes_max), route_state_name(route.state),
                with_place(config, route.refused.in_field("routes." + route.name())).text()});
  say(printable(memory.text() + plugins.text() + routes.text()));
}

enum class Drained { kAll, kCut, kStuck };

// kAll: every request ended by itself. kCut: the rest was cancelled. kStuck: the step thread does
// not return, most likely from a plugin.
// `failed`: why nothing can be computed any more, if that is so.
Drained drain(Engine& engine, Sessions& sessions, GrpcServer& server, StopSignals& signals,
              ServiceManager& manager, RankProcess* process, uint32_t drain_seconds,
              Status& failed) {
  server.start_drain();
  sessions.start_drain();
  const auto is_done = [&](uint64_t wait_ms) {
    if (!sessions.wait_prompts(std::chrono::milliseconds(wait_ms))) return false;
    engine.start_drain();  // not earlier: prompts that were rendered are still submitted
    return engine.wait_idle(wait_ms);
  };
  const uint64_t limit = now_ns() + uint64_t{drain_seconds} * 1'000'000'000;
  bool is_idle = false;
  while (!is_idle && signals.count() < 2 && now_ns() < limit) {
    is_idle = is_done(kPollMs);
    manager.beat(engine.status().step_age_ns);
  }
  is_idle = is_idle || is_done(0);
  // So that no step waits for a rank that has died.
  if (process != nullptr && signals.count() > 0) process->give_up_if_gone();
  failed = engine.failure();
  if (is_idle) return Drained::kAll;
  engine.start_drain();
  std::string why = "the drain limit of " + std::to_string(drain_seconds) + " s";
  if (signals.count() >= 2) why = process == nullptr ? "a second signal" : kSignalOfMpirun;
  if (!failed.ok()) why = failed.text();
  log(LogLevel::kWarn, "cutting the requests that still run: " + why);
  sessions.abort_all(
      Status(Code::kUnavailable, "specd stopped before the request ended (" + why + ")"));
  // Nor for one that is about to end.
  if (process != nullptr && signals.count() >= 2) {
    process->give_up(Status(Code::kCancelled, kSignalOfMpirun));
  }
  if (!engine.wait_idle(kAbortWaitMs)) return Drained::kStuck;
  if (process == nullptr) failed = engine.failure();
  return Drained::kCut;
}

// The soft limit protects programs that use select(); this one does not.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// gRPC does not notice when it gets no threads, and waits for ever.
Result<std::unique_ptr<GrpcServer>> start_server(Engine& engine, Sessions& sessions,
                                                 const Config& config, const DaemonActions& actions,
                                                 const TlsKeys* tls) {
  const auto started = std::make_shared<Result<std::unique_ptr<GrpcServer>>>(
      Status(Code::kUnavailable, "the server does not start"));
  std::string unused;
  const Status done = run_within(
      kServerStartLimit,
      [&engine, &sessions, config, actions, tls, started](const std::atomic<bool>&) {
        *started = GrpcServer::start(engine, sessions, config, actions, tls);
      },
      unused);
  if (done.ok()) return std::move(*started);
  say("specd: the gRPC server: " + done.message() +
      "; are threads (ulimit -u, pids.max of the control group) or descriptors (ulimit -n) short?\n");
  leave(kExitFailed);
}

constexpr int kHttpConnections = 512;
// A body that is parsed delays neither a probe nor another body.
constexpr int kHttpThreads = 4;

Result<std::unique_ptr<HttpServer>> start_http(const HttpOptions& options, const Doorkeeper& keeper,
                                               const TlsKeys* tls, std::vector<HttpRoute> routes) {
  HttpPolicy policy{
      .admit = [&keeper](const HttpRequest& request) { return keeper.door()->refuse(request); },
      .refuse =
          [](const std::string& path, const HttpRefusal& why) {
            return is_triton_path(path) ? triton_refusal(why) : refusal_answer(why);
          }};
  // A quarter of the descriptors; gRPC leaves it.
  rlimit descriptors{};
  int n = kHttpConnections;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur / 4 < kHttpConnections)
    n = std::max(static_cast<int>(descriptors.rlim_cur / 4), 16);
  auto server = HttpServer::start(
      options.address, options.port, std::move(routes),
      {.threads = kHttpThreads, .connections_max = n, .of_address_max = n / 2}, std::move(policy),
      tls == nullptr ? HttpTls() : [tls] { return tls->context(); });
  if (!server.ok()) return server.status().in_field("listen");
  return server;
}

bool rejects_unknown(const Config& config) {
  return config.http.has_value() && config.http->unknown_fields == UnknownFields::kReject;
}

OpenAiFront::Options openai_options(const Config& config) {
  return {.model = config.engine.model.name,
          .model_folder = config.engine.model.path,
          .choices_max = config.engine.queue_max,
          .rejects_unknown_fields = rejects_unknown(config)};
}

std::string summary(const Reloaded& done) {
  std::string text = "the configuration was read again";
  const auto add = [&](const char* words, const std::vector<std::string>& all) {
    for (const std::string& each : all) text += (&each == &all[0] ? words : ", ") + each;
  };
  add("; added ", done.routes.added);
  add("; changed ", done.routes.changed);
  add("; removed ", done.routes.removed);
  add("; set ", done.settings);
  return text;
}

std::string seconds_text(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

int fail(const Status& status) {
  say("specd: " + printable(status.text()) + "\n");
  return kExitFailed;
}

// Plugins are loaded. exit() waits for the linker's lock, which a constructor that hangs holds, and
// runs the destructors of their libraries.
int fail_to_load(const Status& status) {
  const int code = fail(status);
  if (n_late_works() > 0) leave(code);
  return code;
}

// The daemon itself: of one process, or rank 0.
int run_lead(const Config& config, StopSignals& signals, ServiceManager& manager) {
  set_log_level(config.log_level);
  const uint64_t start = now_ns();
  Result<SocketClaim> claim = SocketClaim::take(config.socket_path);
  if (!claim.ok()) return fail(claim.status());
  std::optional<SocketClaim> control_claim;
  if (config.control.has_value()) {
    Result<SocketClaim> taken = SocketClaim::take(config.control->socket_path);
    if (!taken.ok()) return fail(taken.status());
    control_claim.emplace(std::move(taken).value());
  }
  std::optional<SocketClaim> kserve_claim;
  if (config.kserve.has_value() && !config.kserve->socket_path.empty()) {
    Result<SocketClaim> taken = SocketClaim::take(config.kserve->socket_path);
    if (!taken.ok()) return fail(taken.status());
    kserve_claim.emplace(std::move(taken).value());
  }

  std::unique_ptr<TlsKeys> tls, http_tls;
  std::unique_ptr<Doorkeeper> doorkeeper;
  std::vector<Renewal> renewals;
  if (const Status loaded = load_keys(config, tls, http_tls, doorkeeper, renewals); !loaded.ok())
    return fail(loaded);

  // Serves from here on, so that a probe can tell loading from dead, and a port that is taken is
  // found before the weights are read.
  raise_descriptor_limit();
  Health health(config.http ? config.http->stall_seconds : 0);
  OpenAiFront openai(openai_options(config));
  const TritonModel triton_model{.name = config.engine.model.name,
                                 .version = std::to_string(config.model_version())};
  TritonFront triton({.model = triton_model,
                      .rejects_unknown_names = rejects_unknown(config),
                      .is_live = [&health] { return health.is_live(); },
                      .is_ready = [&health] { return health.is_ready(); }});
  PageFront page({.needs_key = config.http && !config.http->api_keys_file.empty(),
                  .sequences_max = config.engine.max_sequences,
                  .queue_max = config.engine.queue_max});
  std::unique_ptr<HttpServer> http;
  if (config.http) {
    std::vector<HttpRoute> routes = openai.routes();
    const auto add = [&routes](std::vector<HttpRoute> more) {
      for (HttpRoute& each : more) routes.push_back(std::move(each));
    };
    add(triton.routes());
    add(health.routes());
    if (config.http->page) add(page.routes());
    auto started = start_http(*config.http, *doorkeeper, http_tls.get(), std::move(routes));
    if (!started.ok()) return fail(with_place(config, started.status().in_field("http")));
    http = std::move(started).value();
    say(std::string("specd: HTTP on http") + (http_tls != nullptr ? "s" : "") + "://" +
        http->endpoint() + "\n");
  }
  std::unique_ptr<HttpServer> triton_metrics;
  if (config.kserve && !config.kserve->metrics_address.empty()) {
    auto started = HttpServer::start(config.kserve->metrics_address, config.kserve->metrics_port,
                                     {health.triton_metrics(triton_model)});
    if (!started.ok())
      return fail(with_place(config, started.status().in_field("kserve.metrics_listen")));
    triton_metrics = std::move(started).value();
    say("specd: Triton's metrics on http://" + triton_metrics->endpoint() + "/metrics\n");
  }

  Progress progress;
  auto engine = Engine::create(config.engine, [&](const std::string& what, double fraction) {
    progress.report(what, fraction);
    manager.loading(what, fraction);
  });
  progress.end();
  if (!engine.ok()) return fail_to_load(with_place(config, engine.status()));
  Reload reload(config, std::move(renewals));
  const DaemonActions actions{
      .drain = [&signals] { signals.stop(); },
      .reload = [&reload,
                 &engine](const ChangeOptions& how) { return reload.run(*engine.value(), how); }};
  auto sessions = std::make_unique<Sessions>(*engine.value(), config.engine.default_route);
  auto server = start_server(*engine.value(), *sessions, config, actions, tls.get());
  if (!server.ok()) return fail_to_load(with_place(config, server.status()));
  signals.loaded();
  health.loaded(*engine.value(), *server.value());
  openai.loaded(*engine.value(), *sessions);
  triton.loaded(*engine.value(), *sessions);
  page.loaded(*engine.value());
  print_start(*engine.value(), config);
  const EngineReport report = engine.value()->status();
  std::string doors;
  for (const std::string& address : server.value()->addresses())
    doors += (doors.empty() ? "" : " and ") + address;
  say("specd " + std::string(kVersion) + " ready on " + doors + " (" + report.device + ", " +
      std::to_string(report.threads) + " threads, " + report.isa + ", " +
      seconds_text(now_ns() - start) + ")\n");

  const std::string serving = "serving on " + doors;
  manager.ready(serving);

  RankProcess* const process = config.engine.process;
  // Plugins may take long, and a signal to stop must not wait for them.
  auto hangups = std::make_unique<TaskQueue>(1, 1);
  const auto on_hangup = [&] {
    const Status told = within_memory([&]() -> Status {
      manager.reloading();
      const auto done = reload.run(*engine.value(), {});
      const std::string text =
          done.ok() ? summary(done.value())
                    : "the configuration was not taken over: " + done.status().text();
      say("specd: SIGHUP: " + text + "\n");
      manager.ready(serving + "; " + text);
      return Status();
    });
    if (!told.ok()) log(LogLevel::kError, "SIGHUP: no memory left");
  };
  const auto poll = std::min(kFailurePoll, manager.watchdog_period());
  bool is_stopped = false;
  StuckThreads stuck_threads;
  while (!is_stopped && engine.value()->failure().ok()) {
    is_stopped = signals.wait_for(poll);
    const Status done = within_memory([&]() -> Status {
      manager.beat(engine.value()->status().step_age_ns);
      stuck_threads.look();
      if (signals.take_hangup() && !hangups->post(on_hangup))
        log(LogLevel::kWarn, "SIGHUP: the configuration is being read again already");
      return Status();
    });
    if (!done.ok()) log(LogLevel::kError, "no memory left");
    if (process != nullptr) process->give_up_if_gone();  // mpirun tells a second later
  }
  const Status failure = engine.value()->failure();
  say(failure.ok() ? "specd: draining; a second signal stops at once\n"
                   : "specd: stopping, because nothing can be computed any more\n");
  health.draining();
  manager.stopping(failure.ok() ? "draining" : failure.text());
  Status failed;
  const Drained drained = drain(*engine.value(), *sessions, *server.value(), signals, manager,
                                process, reload.drain_seconds(), failed);
  claim.value().remove_socket();
  if (control_claim.has_value()) control_claim->remove_socket();
  if (kserve_claim.has_value()) kserve_claim->remove_socket();
  if (drained == Drained::kStuck) {
    // Neither the server nor the engine could be joined.
    log(LogLevel::kError, "requests did not end " + std::to_string(kAbortWaitMs / 1000) +
                              " s after they were cut (does a plugin hang?); leaving without them");
    leave(failed.ok() ? kExitCut : kExitFailed);
  }
  signals.end_within(std::max(kTeardownLimit, std::chrono::seconds(reload.drain_seconds())),
                     failed.ok() ? kExitCut : kExitFailed);
  hangups.reset();
  if (http != nullptr) http->stop(kFlushLimit);
  server.value()->shutdown(kFlushLimit);
  http.reset();
  triton_metrics.reset();
  server.value().reset();
  sessions.reset();
  if (n_late_works() > 0) {
    // Plugin code still runs in a control call, and uses the engine.
    log(LogLevel::kError, "a call of a plugin has not returned; leaving without it");
    leave(failed.ok() ? kExitCut : kExitFailed);
  }
  engine.value().reset();
  shut_down_plugins();
  if (!failed.ok()) return fail(failed);
  const bool cut = drained == Drained::kCut;
  say(std::string("specd: stopped") + (cut ? "; some requests were cut" : "") + "\n");
  return cut ? kExitCut : kExitOk;
}

// Ends this rank and all others; the lead says why.
[[noreturn]] void abort_ranks(RankProcess& process, int code) {
  flush_log(kLastWriteLimit);
  expect_end();
  process.abort(code);
}

// A rank that follows. When it fails the lead tells its clients, then ends all; this one does when
// the lead does not.
int run_follower(RankProcess& process, const Config& config, StopSignals& signals) {
  set_log_level(std::max(config.log_level, LogLevel::kError));
  signals.follow();
  const Status status = process.follow(config.engine);
  if (status.ok()) return kExitOk;
  std::this_thread::sleep_for(kLeadLimit);
  say("specd: rank " + std::to_string(process.rank()) +
      " leaves, and the lead has not ended it: " + printable(status.text()) + "\n");
  abort_ranks(process, kExitFailed);
}

// Joins the other ranks, and says why a configuration is wrong on any of them. Null: not under mpirun.
std::unique_ptr<RankProcess> join_ranks(const Result<Config>& config) {
  if (!RankProcess::is_one()) return nullptr;
  auto joined = RankProcess::join(config.ok() ? config.value().engine : EngineOptions(),
                                  config.ok() ? config_values(config.value()) : RankSettings());
  if (!joined.ok()) leave(fail(joined.status()));
  std::unique_ptr<RankProcess> process = std::move(joined).value();
  if (config.ok() && process->rank() == 0) {
    const Status world = process->check_world(config.value().engine);
    if (!world.ok()) abort_ranks(*process, fail(with_place(config.value(), world)));
  }
  const Status agreed = process->agree(config.status());
  if (agreed.ok()) return process;
  if (process->rank() > 0) std::this_thread::sleep_for(kLeadLimit);
  fail(agreed);
  abort_ranks(*process, process->status().ok() ? kExitConfig : kExitFailed);
}

}  // namespace

int run_daemon(const Result<Config>& loaded) {
  ServiceManager manager;
  static StopSignals& signals = *new StopSignals(RankProcess::is_one());  // its thread never ends
  start_log_thread();
  const std::unique_ptr<RankProcess> process = join_ranks(loaded);
  if (!loaded.ok()) return kExitConfig;
  Config config = loaded.value();
  config.engine.process = process.get();
  if (process != nullptr && process->rank() > 0) return run_follower(*process, config, signals);
  const int code = run_lead(config, signals, manager);
  if (process != nullptr && code != kExitOk) abort_ranks(*process, code);
  return code;
}

}  // namespace specd::host
