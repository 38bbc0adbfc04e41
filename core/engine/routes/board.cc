#include "core/engine/routes/board.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <utility>

#include "core/base/bad_alloc.h"
#include "core/base/failpoint.h"
#include "core/base/log.h"
#include "core/base/run_within.h"
#include "core/base/thread.h"
#include "core/services/metrics.h"
#include "core/spec/route_builder.h"

namespace specd {

namespace {

void add(CallCounts& to, const CallStats& stats) {
  to.calls += stats.calls;
  to.ns += stats.total_ns;
  to.failures += stats.failures;
}

// Counters add up over generations; a gauge belongs to one instance.
void add_metrics(RouteCounts& to, const std::string& plugin, const char* kind,
                 const specd_owner& owner, bool with_gauges) {
  for (PluginMetric& metric : plugin_metrics(owner)) {
    if (!metric.counter && !with_gauges) continue;
    // A new version of a plugin may make a gauge of what was a counter.
    const auto found = std::find_if(
        to.of_plugins.begin(), to.of_plugins.end(), [&](const PluginMetricReport& one) {
          return one.counter && one.plugin == plugin && one.kind == kind && one.name == metric.name;
        });
    if (metric.counter && found != to.of_plugins.end()) {
      found->value += metric.value;
      continue;
    }
    to.of_plugins.push_back({.plugin = plugin,
                             .kind = kind,
                             .name = std::move(metric.name),
                             .help = std::move(metric.help),
                             .counter = metric.counter,
                             .value = metric.value});
  }
}

void add_counts(const LiveRoute& route, RouteCounts& to, bool with_gauges) {
  route.counters.add_to(to);
  const Drafter& drafter = *route.drafter;
  const Verifier& verifier = *route.verifier;
  add(to.begin, drafter.begin_stats);
  add(to.propose, drafter.propose_stats);
  add(to.update, drafter.update_stats);
  add(to.verify, verifier.verify_stats);
  add_metrics(to, route.drafter_bundle.id, "drafter", drafter.owner(), with_gauges);
  add_metrics(to, route.verifier_bundle.id, "verifier", verifier.owner(), with_gauges);
}

// Versions whose keys are equal count together: a route whose plugins change starts from 0.
std::string counts_key(const RouteOptions& options) {
  return options.name + '\n' + options.drafter.plugin + '\n' + options.verifier.plugin;
}

// Of the versions that serve, or may again.
std::set<std::string> counts_keys(const RouteTable& table) {
  std::set<std::string> keys;
  for (const auto& [name, entry] : table) {
    for (const auto* each : {&entry.live, &entry.previous}) {
      if (each->has_value()) keys.insert(counts_key((*each)->options));
    }
  }
  return keys;
}

// The versions of an entry that have a pair.
std::vector<const RouteVersion*> versions_of(const RouteEntry& entry) {
  std::vector<const RouteVersion*> versions;
  for (const auto* each : {&entry.live, &entry.candidate, &entry.previous}) {
    if (each->has_value() && (*each)->route != nullptr) versions.push_back(&each->value());
  }
  return versions;
}

// `before`: the counts of earlier generations.
RouteReport describe(const RouteOptions& options, const LiveRoute& route, RouteState state,
                     RouteCounts before, int32_t n_running) {
  RouteReport report{.options = options,
                     .state = state,
                     .generation = route.generation,
                     .in_use = route.n_leases,
                     .drafter = {route.drafter_bundle.version, route.drafter_bundle.sha256},
                     .verifier = {route.verifier_bundle.version, route.verifier_bundle.sha256},
                     .draft_nodes_max = route.draft_nodes_max,
                     .memory_bytes = route.drafter->memory_bytes(),
                     .memory_bytes_max = route.drafter->grant().memory_bytes_max,
                     .ring_bytes = route.ring_bytes,
                     .drafts_on_device = route.drafter->grant().device_type != SPECD_DEV_CPU,
                     .suspended = route.suspended(n_running),
                     .counts = std::move(before),
                     .last_problem = route.last_problem.get()};
  add_counts(route, report.counts, true);
  return report;
}

bool is_late_in_plugin_of(const LiveRoute& route) {
  const auto is_late = [](const BundleInfo& bundle) {
    return is_late_in(exact_name(bundle.id, bundle.version));
  };
  return is_late(route.drafter_bundle) || is_late(route.verifier_bundle) ||
         std::any_of(route.part_bundles.begin(), route.part_bundles.end(), is_late);
}

VersionMemory memory_of(const LiveRoute& route, RouteState state) {
  // A process has two sets of rings for a moment, when it is started again.
  const bool is_beside = route.isolation != Isolation::kNone || route.ring_bytes > 0;
  const bool has_drafter = route.drafter != nullptr;  // else it is not made yet
  return {.limit = {.route = route.name,
                    .bytes = has_drafter ? route.drafter->grant().memory_bytes_max : 0,
                    .is_with_models = has_drafter && route.on_device(),
                    .ring_bytes = is_beside ? route.beside_bytes : 0},
          .what = "route " + route.name + ", generation " + std::to_string(route.generation) +
                  " (" + route_state_name(state) + ")",
          .can_leave = !is_late_in_plugin_of(route)};
}

}  // namespace

RouteBoard::RouteBoard(Mutex& control, std::chrono::seconds time_limit, OnLate on_late)
    : control_(control),
      time_limit_(time_limit),
      on_late_(std::move(on_late)),
      table_(std::make_shared<const RouteTable>()),
      beat_("specd-retire", "", 2 * time_limit) {
  thread_ = start_thread("specd-retire", [this] { retire_loop(); });
}

RouteBoard::~RouteBoard() {
  until_done([this] { publish({}); });
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // They use what is destroyed next. The process has its own limit for a call that never returns.
  wait_for_late_works();
}

std::shared_ptr<const RouteTable> RouteBoard::read() const {
  const MutexLock lock(mutex_);
  return table_;
}

std::shared_ptr<LiveRoute> RouteBoard::share(std::unique_ptr<LiveRoute> route) {
  return {route.release(), [this](LiveRoute* last) {
            {
              const MutexLock lock(mutex_);
              last->next_released = std::move(released_);
              released_.reset(last);
            }
            changed_.notify_all();
          }};
}

void RouteBoard::publish(RouteTable table) {
  const std::set<std::string> keys = counts_keys(table);
  std::set<const LiveRoute*> kept;
  for (const auto& [name, entry] : table) {
    for (const RouteVersion* each : versions_of(entry)) kept.insert(each->route.get());
  }
  auto next = std::make_shared<const RouteTable>(std::move(table));
  std::vector<Draining> leaving;
  const std::shared_ptr<const RouteTable> now = read();
  for (const auto& [name, entry] : *now) {
    for (const RouteVersion* each : versions_of(entry)) {
      const LiveRoute* const route = each->route.get();
      if (!kept.contains(route)) leaving.push_back({each->options, route->generation, route});
    }
  }
  {
    const MutexLock lock(mutex_);
    draining_.reserve(draining_.size() + leaving.size());  // nothing is half done without memory
    std::erase_if(draining_, [&](const Draining& one) { return kept.contains(one.route); });
    std::move(leaving.begin(), leaving.end(), std::back_inserter(draining_));
    std::erase_if(past_, [&](const auto& past) { return !keys.contains(past.first); });
    table_.swap(next);
  }
  // The old table is released here, without the lock: that may queue its routes, which locks again.
}

std::vector<std::string> RouteBoard::watched() const {
  std::vector<std::string> names;
  const std::shared_ptr<const RouteTable> now = read();
  for (const auto& [name, entry] : *now) {
    const bool is_beside = entry.live.has_value() && entry.live->route != nullptr &&
                           entry.live->route->isolation != Isolation::kNone;
    if (entry.candidate.has_value() || entry.previous.has_value() || is_beside)
      names.push_back(name);
  }
  return names;
}

// Of the other versions, drained, draining or kept, with the plugins of the live one.
RouteCounts RouteBoard::counts_before(const RouteEntry& entry) const {
  const std::string key = counts_key(entry.live->options);
  const auto past = past_.find(key);
  RouteCounts counts = past == past_.end() ? RouteCounts() : past->second;
  const auto add_old = [&](const RouteOptions& options, const LiveRoute* route) {
    if (route != nullptr && counts_key(options) == key) add_counts(*route, counts, false);
  };
  for (const Draining& old : draining_) add_old(old.options, old.route);
  if (entry.previous.has_value()) add_old(entry.previous->options, entry.previous->route.get());
  return counts;
}

std::vector<RouteReport> RouteBoard::report(int32_t n_running) const {
  const MutexLock lock(mutex_);
  std::vector<RouteReport> reports;
  for (const auto& [name, entry] : *table_) {
    if (entry.live.has_value() && entry.live->route == nullptr) {
      const bool is_stopped = entry.live->state == RouteState::kStopped;
      reports.push_back({.options = entry.live->options,
                         .state = entry.live->state,
                         .refused = entry.refused,
                         .suspended = is_stopped,
                         .counts = is_stopped ? counts_before(entry) : RouteCounts()});
    }
    for (const RouteVersion* each : versions_of(entry)) {
      RouteCounts before;
      if (stands_for_route(each->state)) before = counts_before(entry);
      RouteReport report =
          describe(each->options, *each->route, each->state, std::move(before), n_running);
      if (each->state == RouteState::kCanary) report.share_percent = entry.share_percent;
      reports.push_back(std::move(report));
    }
  }
  for (const Draining& old : draining_) {
    if (old.route != nullptr) {
      reports.push_back(describe(old.options, *old.route, RouteState::kDraining, {}, n_running));
    } else {
      reports.push_back(
          {.options = old.options, .state = RouteState::kDraining, .generation = old.generation});
    }
  }
  return reports;
}

bool RouteBoard::may_stop(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto entry = table_->find(name);
  if (entry == table_->end()) return true;
  const std::vector<const RouteVersion*> versions = versions_of(entry->second);
  return std::none_of(
             versions.begin(), versions.end(),
             [](const RouteVersion* each) { return is_late_in_plugin_of(*each->route); }) &&
         std::none_of(draining_.begin(), draining_.end(), [&](const Draining& one) {
           return one.options.name == name && one.route != nullptr &&
                  is_late_in_plugin_of(*one.route);
         });
}

bool RouteBoard::is_draining(const std::string& name) const {
  const MutexLock lock(mutex_);
  return std::any_of(draining_.begin(), draining_.end(),
                     [&](const Draining& one) { return one.options.name == name; });
}

std::vector<VersionMemory> RouteBoard::held() const {
  const MutexLock lock(mutex_);
  std::vector<VersionMemory> all = left_alone_;
  for (const auto& [name, entry] : *table_) {
    for (const RouteVersion* each : versions_of(entry))
      all.push_back(memory_of(*each->route, each->state));
  }
  for (const Draining& old : draining_) all.push_back(memory_of(*old.route, RouteState::kDraining));
  return all;
}

void RouteBoard::retire_loop() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && released_ == nullptr) changed_.wait(lock);
      if (released_ == nullptr) return;
    }
    bool is_done = false;
    {
      const BusyTurn turn(beat_);
      const MutexLock control(control_);
      is_done = retire_all();
    }
    if (is_done) continue;
    MutexLock lock(mutex_);
    changed_.wait_until(lock, CondVar::Clock::now() + std::chrono::milliseconds(100));
  }
}

void RouteBoard::retire_released() { (void)retire_all(); }

bool RouteBoard::retire_all() {
  while (true) {
    std::optional<Retiring> next;
    try {
      const MutexLock lock(mutex_);
      std::unique_ptr<LiveRoute>* const found = next_released();
      if (found == nullptr) return released_ == nullptr;
      next = take(*found);
    } catch (const std::bad_alloc&) {
      return false;  // the route itself may hold what is missing
    }
    retire(*next);
    const MutexLock lock(mutex_);
    std::erase_if(draining_, [&](const Draining& one) {
      return one.route == nullptr && one.options.name == next->name &&
             one.generation == next->generation;
    });
  }
}

std::unique_ptr<LiveRoute>* RouteBoard::next_released() {
  std::unique_ptr<LiveRoute>* at = &released_;
  // The last ones are retired when no work is late any more.
  while (!stopping_ && *at != nullptr && is_late_in_plugin_of(**at)) at = &(*at)->next_released;
  return *at == nullptr ? nullptr : at;
}

// Takes the route from the list, after everything that needs memory.
RouteBoard::Retiring RouteBoard::take(std::unique_ptr<LiveRoute>& from) {
  const LiveRoute* const released = from.get();
  Retiring next{.name = released->name,
                .generation = released->generation,
                .route = std::make_shared<std::unique_ptr<LiveRoute>>(),
                .destroy = {},
                .memory = memory_of(*released, RouteState::kDraining),
                .is_last = stopping_};
  next.memory.can_leave = false;
  next.memory.what += ", whose plugin does not return";
  next.destroy = [route = next.route](const std::atomic<bool>& is_late) {
    destroy_route(**route, is_late);
  };
  left_alone_.reserve(left_alone_.size() + 1);
  const auto old = std::find_if(draining_.begin(), draining_.end(),
                                [&](const Draining& one) { return one.route == released; });
  if (old != draining_.end()) {  // else it was never published
    const std::string key = counts_key(old->options);
    if (counts_keys(*table_).contains(key)) {
      RouteCounts& past = past_[key];
      RouteCounts sum = past;
      add_counts(*released, sum, false);
      past = std::move(sum);
    }
    old->route = nullptr;
  }
  *next.route = std::move(from);
  from = std::move((*next.route)->next_released);
  return next;
}

// With `control` held.
void RouteBoard::retire(Retiring& next) {
  Status retired;
  bool is_late = false;
  SPECD_FAILPOINT(kRouteRetire);
  if (next.is_last) {
    // ~RouteBoard() waits for this, so it needs no limit.
    wait_for_late_works();
    next.destroy(kNeverLate);
  } else {
    std::string late_plugin;
    const LiveRoute& route = **next.route;
    const std::chrono::seconds limit = route.control_limit(time_limit_);
    const bool was_condemned = route.is_condemned();  // then its plugin is set aside already
    retired = run_within(limit, std::move(next.destroy), late_plugin);
    is_late = retired.code() == Code::kDeadlineExceeded;
    // Else the plugin would be called again.
    if (is_late && !was_condemned) {
      until_done([&] { retired = on_late_(next.name, next.generation, late_plugin, retired); });
    }
  }
  // Without a thread for it, it is destroyed here.
  if (!is_late) next.route->reset();
  or_drop([&] {
    const std::string what =
        "route " + next.name + ", generation " + std::to_string(next.generation) + ": ";
    if (!is_late) {
      log(LogLevel::kDebug, what + "retired");
    } else {
      log(LogLevel::kError, what + retired.message() + "; it is left alone with its memory");
    }
  });
  if (!is_late) return;
  const MutexLock lock(mutex_);
  left_alone_.push_back(std::move(next.memory));
}

}  // namespace specd
