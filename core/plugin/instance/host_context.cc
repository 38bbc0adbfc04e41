#include "core/plugin/instance/host_context.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/bad_alloc.h"
#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd {
namespace {

constexpr size_t kTextBytesMax = 4096;      // of one call, and of one sequence
constexpr size_t kLogBytesMax = 8192;       // of one line
constexpr uint32_t kLinesMax = 100;         // of a plugin's log in a second
constexpr size_t kSequenceTextsMax = 1024;  // a plugin must not use up the host's memory

thread_local const PluginScope* present_scope = nullptr;

// What `host->ctx` points at.
struct HostState {
  std::atomic<const ServiceDirectory*> services{nullptr};
  specd_host host{};
};

// Never destroyed: plugin code may call its host until the process ends.
struct Hosts {
  Mutex mutex;
  std::vector<std::unique_ptr<HostState>> states SPECD_GUARDED_BY(mutex);  // only grows
  std::vector<const ServiceDirectory*> living SPECD_GUARDED_BY(mutex);     // newest last
};
Hosts& hosts() {
  static Hosts* const all = new Hosts;
  return *all;
}

Mutex& report_mutex() {
  static Mutex* const mutex = new Mutex;
  return *mutex;
}

// Text from a plugin is not trusted to be UTF-8: it ends up in log lines and in messages of a
// protocol that refuses other bytes. The same text twice in a row is told once.
void append_clean(std::string& out, std::string_view text, size_t bytes_max) {
  if (!text.empty() && (out == text || out.ends_with("; " + std::string(text)))) return;
  if (!out.empty() && out.size() < bytes_max) out += "; ";
  for (size_t i = 0; i < text.size() && out.size() < bytes_max;) {
    const Utf8Step step = utf8_step(text, i);
    if (step.kind != Utf8Step::Kind::kValid) {
      out += '?';
      i += 1;
      continue;
    }
    if (is_hidden(step.code_point) && step.code_point != '\n' && step.code_point != '\t') {
      out += ' ';
    } else {
      out.append(text, i, step.bytes);
    }
    i += step.bytes;
  }
}

// How many lines each plugin logged in the present second. By its id: a plugin may have many
// instances, and a host many routes.
class LogBudgets {
 public:
  using Dropped = std::map<std::string, uint64_t>;  // lines, by plugin
  // [any] False when the plugin has used up its second. `dropped`: what any plugin was refused
  // before this second, told once.
  bool take(const std::string& plugin, Dropped& dropped) {
    const uint64_t second = now_ns() / 1'000'000'000;
    const MutexLock lock(mutex_);
    if (second != second_) {
      n_lines_.clear();
      dropped.swap(n_dropped_);
      second_ = second;
    }
    if (++n_lines_[plugin] <= kLinesMax) return true;
    ++n_dropped_[plugin];
    return false;
  }
  Dropped take_dropped() {
    const MutexLock lock(mutex_);
    return std::exchange(n_dropped_, Dropped());
  }

 private:
  Mutex mutex_;
  uint64_t second_ SPECD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, uint32_t> n_lines_ SPECD_GUARDED_BY(mutex_);
  Dropped n_dropped_ SPECD_GUARDED_BY(mutex_);
};
LogBudgets& log_budgets() {
  static LogBudgets* const all = new LogBudgets;
  return *all;
}

void tell(const LogBudgets::Dropped& dropped) {
  for (const auto& [plugin, n] : dropped) {
    log(LogLevel::kWarn, (plugin.empty() ? "plugins" : "plugin " + plugin) + ": " +
                             std::to_string(n) + " lines were dropped; a plugin may log " +
                             std::to_string(kLinesMax) + " a second");
  }
}

// Whether the plugin may log one more line.
bool may_log(const std::string& plugin) {
  LogBudgets::Dropped dropped;
  // Versions of a plugin share what it may log.
  const bool may = log_budgets().take(plugin.substr(0, plugin.find('@')), dropped);
  tell(dropped);
  return may;
}

// Logs "plugin NAME" + `verb` + `text` for the plugin of this thread, within its budget. `text` is
// cleaned here, so a line that is dropped costs no copy. Threads that a plugin starts have no name,
// and one budget for all.
void log_for_plugin(LogLevel level, const char* verb, std::string_view text) {
  if (!is_logged(level)) return;
  const char* id = current_activity().plugin;
  const std::string name = present_scope != nullptr ? present_scope->name()
                           : id != nullptr          ? id
                                                    : "";
  if (!may_log(id != nullptr ? id : name)) return;
  std::string clean;
  append_clean(clean, text, kLogBytesMax);
  log(level, (name.empty() ? "plugin" : "plugin " + name) + verb + clean);
}

void host_log(const specd_host*, uint32_t severity, const char* text, uint64_t len) noexcept {
  if (text == nullptr) return;
  const LogLevel level = severity == SPECD_LOG_DEBUG  ? LogLevel::kDebug
                         : severity == SPECD_LOG_INFO ? LogLevel::kInfo
                         : severity == SPECD_LOG_WARN ? LogLevel::kWarn
                                                      : LogLevel::kError;
  or_drop([&] {
    log_for_plugin(level, ": ", std::string_view(text, std::min<uint64_t>(len, kLogBytesMax)));
  });
}

void host_report(const specd_host*, specd_call* call, int32_t seq_index, const char* text,
                 uint64_t len) noexcept {
  if (text == nullptr) return;
  or_drop([&] {
    report_text(call, seq_index, std::string_view(text, std::min<uint64_t>(len, kTextBytesMax)));
  });
}

const void* host_get_service(const specd_host* host, const char* id) noexcept {
  const ServiceDirectory* services = host_services(host);
  return id == nullptr || services == nullptr ? nullptr : find_service(*services, id);
}

uint64_t host_now_ns(const specd_host*) noexcept { return now_ns(); }

// A service's id is "name/version#layout".
struct ServiceId {
  std::string_view name, layout;
};

ServiceId split_id(std::string_view id) {
  const size_t hash = id.find('#');
  if (hash == id.npos) return {id, std::string_view()};
  return {id.substr(0, hash), id.substr(hash + 1)};
}

}  // namespace

bool is_metric_name(const char* name) {
  if (name[0] < 'a' || name[0] > 'z') return false;
  size_t length = 1;
  for (; length <= 64 && name[length] != '\0'; ++length) {
    const char c = name[length];
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return length <= 64;
}

const void* find_service(const ServiceDirectory& directory, const char* id) {
  const ServiceId wanted = split_id(id);
  for (const ServiceTable& each : directory.services()) {
    const ServiceId offered = split_id(each.id);
    if (offered.name != wanted.name) continue;
    if (offered.layout == wanted.layout) return each.table;
    or_drop([&] {
      const std::string reason = "host service " + quote(wanted.name) +
                                 ": the plugin was built against another layout of it: expected " +
                                 std::string(offered.layout) + ", found " + quote(wanted.layout) +
                                 "; rebuild the plugin with this daemon's SDK";
      // Logged as well: a plugin may do without the service, and reports of successful calls are
      // dropped.
      log_for_plugin(LogLevel::kWarn, ": ", reason);
      report_text(nullptr, -1, reason);
    });
    return nullptr;
  }
  return nullptr;
}

const specd_host* make_host(const ServiceDirectory* services) {
  Hosts& all = hosts();
  const MutexLock lock(all.mutex);
  if (std::find(all.living.begin(), all.living.end(), services) == all.living.end()) {
    all.living.push_back(services);
  }
  HostState* made = nullptr;
  for (const auto& state : all.states) {
    const ServiceDirectory* behind = state->services.load(std::memory_order_relaxed);
    if (behind == services) return &state->host;
    if (behind == nullptr) {  // its directory is gone
      state->services.store(services, std::memory_order_release);
      made = state.get();
    }
  }
  if (made != nullptr) return &made->host;
  auto state = std::make_unique<HostState>();
  state->services.store(services, std::memory_order_release);
  state->host.struct_size = sizeof(specd_host);
  state->host.ctx = state.get();
  state->host.name = "specd";
  state->host.version = SPECD_VERSION;
  state->host.log = host_log;
  state->host.report = host_report;
  state->host.get_service = host_get_service;
  state->host.now_ns = host_now_ns;
  all.states.push_back(std::move(state));
  return &all.states.back()->host;
}

void retire_host(const ServiceDirectory* services) {
  Hosts& all = hosts();
  const MutexLock lock(all.mutex);
  std::erase(all.living, services);
  const ServiceDirectory* newest = all.living.empty() ? nullptr : all.living.back();
  for (const auto& state : all.states) {
    if (state->services.load(std::memory_order_relaxed) == services) {
      state->services.store(newest, std::memory_order_release);
    }
  }
}

const ServiceDirectory* host_services(const specd_host* host) {
  if (host == nullptr || host->ctx == nullptr) return nullptr;
  return static_cast<const HostState*>(host->ctx)->services.load(std::memory_order_acquire);
}

PluginScope::PluginScope(const std::string& name, std::string* text, const Activity& activity)
    : name_(name),
      text_(text),
      outer_(std::exchange(present_scope, this)),
      outer_activity_(set_activity(activity)) {}

PluginScope::~PluginScope() {
  set_activity(outer_activity_);
  present_scope = outer_;
}

std::string exact_name(const std::string& id, const std::string& version) {
  return id + "@" + version;
}

std::string build_text(const std::string& id, const std::string& version,
                       const std::string& sha256) {
  return "plugin " + id + ", version " + version + ", sha256:" + sha256;
}

void log_because_of(const std::string& plugin, LogLevel level, std::string_view text) {
  if (is_logged(level) && may_log(plugin)) log(level, text);
}

void log_dropped_lines() {
  or_drop([] { tell(log_budgets().take_dropped()); });
}

void report_text(specd_call* call, int32_t seq_index, std::string_view text) {
  // One lock for all calls: reports are rare, and a plugin may report from several threads at once.
  const MutexLock lock(report_mutex());
  if (call != nullptr) {
    const bool in_batch = seq_index >= 0 && call->batch != nullptr &&
                          static_cast<uint32_t>(seq_index) < call->batch->n_seqs;
    if (in_batch && (call->sequence_text.count(seq_index) != 0 ||
                     call->sequence_text.size() < kSequenceTextsMax)) {
      append_clean(call->sequence_text[seq_index], text, kTextBytesMax);
    } else {
      append_clean(call->text, text, kTextBytesMax);
    }
  } else if (present_scope != nullptr && present_scope->text() != nullptr) {
    append_clean(*present_scope->text(), text, kTextBytesMax);
  } else {
    log_for_plugin(LogLevel::kWarn, " reports: ", text);
  }
}

}  // namespace specd
