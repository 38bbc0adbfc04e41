#include "core/engine/routes/board.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/services/metrics.h"

namespace specd {

namespace {

void add_call(RouteReport& to, const std::string& plugin, const char* call,
              const CallStats& stats) {
  auto found = std::find_if(to.calls.begin(), to.calls.end(), [&](const PluginCallReport& one) {
    return one.plugin == plugin && one.call == call;
  });
  if (found == to.calls.end()) {
    found = to.calls.insert(found, {.plugin = plugin, .call = call});
  }
  found->calls += stats.calls;
  found->ns += stats.total_ns;
  found->failures += stats.failures;
}

// Counters add up over generations; a gauge is of one instance.
void add_metrics(RouteReport& to, const std::string& plugin, const char* kind,
                 const specd_owner& owner, bool with_gauges) {
  for (PluginMetric& metric : plugin_metrics(owner)) {
    if (!metric.counter && !with_gauges) continue;
    const auto found = std::find_if(
        to.plugin_metrics.begin(), to.plugin_metrics.end(), [&](const PluginMetricReport& one) {
          return one.plugin == plugin && one.kind == kind && one.name == metric.name && one.counter;
        });
    if (found != to.plugin_metrics.end()) {
      found->value += metric.value;
      continue;
    }
    to.plugin_metrics.push_back({.plugin = plugin,
                                 .kind = kind,
                                 .name = std::move(metric.name),
                                 .help = std::move(metric.help),
                                 .counter = metric.counter,
                                 .value = metric.value});
  }
}

void add_counts(const LiveRoute& route, RouteReport& to, bool with_gauges) {
  const RouteCounters& counters = route.counters;
  to.requests += counters.requests;
  to.steps += counters.steps;
  to.drafts += counters.drafts;
  to.drafted += counters.drafted;
  to.accepted += counters.accepted;
  to.rejected += counters.rejected;
  to.discarded += counters.discarded;
  to.accepted_at.resize(std::max(to.accepted_at.size(), counters.accepted_at.size()));
  for (size_t i = 0; i < counters.accepted_at.size(); ++i) {
    to.accepted_at[i] += counters.accepted_at[i];
  }
  to.forward_ns += counters.forward_ns;
  to.cut += counters.cut;
  to.lost += counters.sequences_lost;
  const Drafter& drafter = *route.drafter;
  const Verifier& verifier = *route.verifier;
  to.propose_calls += drafter.propose_stats.calls;
  to.propose_ns += drafter.propose_stats.total_ns;
  to.propose_failures += drafter.propose_stats.failures;
  to.verify_calls += verifier.verify_stats.calls;
  to.verify_ns += verifier.verify_stats.total_ns;
  to.verify_failures += verifier.verify_stats.failures;
  add_call(to, route.drafter_bundle.id, "begin", drafter.begin_stats);
  add_call(to, route.drafter_bundle.id, "propose", drafter.propose_stats);
  add_call(to, route.drafter_bundle.id, "update", drafter.update_stats);
  add_call(to, route.verifier_bundle.id, "verify", verifier.verify_stats);
  add_metrics(to, route.drafter_bundle.id, "drafter", drafter.owner(), with_gauges);
  add_metrics(to, route.verifier_bundle.id, "verifier", verifier.owner(), with_gauges);
}

// Whether counts of one belong to the other: a route that changes its plugins begins anew.
bool same_plugins(const RouteOptions& a, const RouteOptions& b) {
  return a.name == b.name && a.drafter.plugin == b.drafter.plugin &&
         a.verifier.plugin == b.verifier.plugin;
}

RouteReport describe(const RouteOptions& options, const LiveRoute& route, RouteReport report) {
  report.name = options.name;
  report.drafter = options.drafter.plugin;
  report.verifier = options.verifier.plugin;
  report.guarantee = guarantee_name(options.guarantee);
  report.generation = route.generation;
  report.draft_nodes_max = route.draft_nodes_max;
  report.disable_by_batch_size = route.disable_by_batch_size;
  report.drafter_version = route.drafter_bundle.version;
  report.verifier_version = route.verifier_bundle.version;
  report.drafter_sha256 = route.drafter_bundle.sha256;
  report.verifier_sha256 = route.verifier_bundle.sha256;
  report.memory_bytes = route.drafter->memory_bytes();
  report.memory_bytes_max = route.drafter->grant().memory_bytes_max;
  report.in_use = route.n_leases;
  report.last_problem = route.last_problem.get();
  add_counts(route, report, true);
  return report;
}

}  // namespace

RouteBoard::RouteBoard(std::mutex& control)
    : control_(control), table_(std::make_shared<const RouteTable>()) {
  thread_ = std::thread([this] { retire_loop(); });
}

RouteBoard::~RouteBoard() {
  publish({});
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<const RouteTable> RouteBoard::read() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

std::shared_ptr<LiveRoute> RouteBoard::share(std::unique_ptr<LiveRoute> route) {
  return {route.release(), [this](LiveRoute* last) {
            {
              const std::lock_guard lock(mutex_);
              released_.emplace_back(last);
            }
            changed_.notify_all();
          }};
}

void RouteBoard::publish(RouteTable table) {
  auto next = std::make_shared<const RouteTable>(std::move(table));
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : *table_) {
      const auto kept = next->find(name);
      if (kept == next->end() || !same_plugins(entry.options, kept->second.options)) {
        past_.erase(name);
      }
      const bool replaced = kept == next->end() || kept->second.live != entry.live;
      if (entry.live != nullptr && replaced) draining_.push_back({entry.options, entry.live.get()});
    }
    table_.swap(next);
  }
  // Letting go of the old table may queue its routes: not under the lock.
}

std::vector<RouteReport> RouteBoard::report() const {
  const std::lock_guard lock(mutex_);
  std::vector<RouteReport> reports;
  for (const auto& [name, entry] : *table_) {
    const auto past = past_.find(name);
    RouteReport report = past == past_.end() ? RouteReport() : past->second;
    for (const Draining& old : draining_) {
      if (same_plugins(old.options, entry.options)) add_counts(*old.route, report, false);
    }
    if (entry.live != nullptr) {
      report = describe(entry.options, *entry.live, std::move(report));
      report.state = "live";
    } else {
      report.name = name;
      report.drafter = entry.options.drafter.plugin;
      report.verifier = entry.options.verifier.plugin;
      report.guarantee = guarantee_name(entry.options.guarantee);
      report.state = "refused";
      report.refused = entry.refused;
    }
    reports.push_back(std::move(report));
  }
  for (const Draining& old : draining_) {
    reports.push_back(describe(old.options, *old.route, {}));
    reports.back().state = "draining";
  }
  return reports;
}

void RouteBoard::retire_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !released_.empty(); });
    if (released_.empty()) return;
    std::unique_ptr<LiveRoute> route = std::move(released_.back());
    released_.pop_back();
    const auto old = std::find_if(draining_.begin(), draining_.end(),
                                  [&](const Draining& one) { return one.route == route.get(); });
    if (old != draining_.end()) {  // else it was never published
      const auto now = table_->find(route->name);
      if (now != table_->end() && same_plugins(now->second.options, old->options)) {
        add_counts(*route, past_[route->name], false);
      }
      draining_.erase(old);
    }
    lock.unlock();
    {
      const std::lock_guard control(control_);
      const std::string what =
          "route " + route->name + ", generation " + std::to_string(route->generation);
      route.reset();
      log(LogLevel::kDebug, what + ": retired");
    }
    lock.lock();
  }
}

}  // namespace specd
