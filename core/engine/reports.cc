#include "core/engine/impl.h"

namespace specd {

std::vector<PluginReport> Engine::plugins() const {
  std::vector<PluginReport> reports;
  for (const BundleInfo& bundle : impl_->registry->list()) {
    PluginReport report{.id = bundle.id,
                        .version = bundle.version,
                        .license = bundle.license,
                        .directory = bundle.directory,
                        .sha256 = bundle.sha256,
                        .state = {},
                        .reason = bundle.reason,
                        .factories = {}};
    switch (bundle.state) {
      case BundleInfo::State::kDiscovered:
        report.state = "discovered";
        break;
      case BundleInfo::State::kLoaded:
        report.state = "loaded";
        break;
      case BundleInfo::State::kRefused:
        report.state = "refused";
        break;
    }
    for (const FactoryInfo& factory : bundle.factories) {
      report.factories.emplace_back(factory.id, factory.kind);
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::vector<RouteReport> Engine::routes() const {
  std::vector<RouteReport> reports;
  RouteReport off;
  off.name = "off";
  off.model = impl_->options.model.name;
  off.guarantee = "identical";
  off.state = "live";
  off.is_default = impl_->options.default_route == "off";
  reports.push_back(off);
  for (const RouteOptions& wanted : impl_->options.routes) {
    RouteReport report;
    report.name = wanted.name;
    report.model = impl_->options.model.name;
    report.drafter = wanted.drafter.plugin;
    report.verifier = wanted.verifier.plugin;
    report.guarantee = guarantee_text(wanted.guarantee);
    report.is_default = wanted.name == impl_->options.default_route;
    const auto live = impl_->routes.find(wanted.name);
    if (live == impl_->routes.end()) {
      report.state = "refused";
      report.reason = impl_->refused_routes.at(wanted.name);
    } else {
      const LiveRoute& route = *live->second;
      report.state = "live";
      report.draft_nodes_max = route.draft_nodes_max;
      report.requests = route.counters.requests;
      report.drafts = route.counters.drafts;
      for (const auto& n : route.counters.accepted_at) report.accepted_at.push_back(n);
      report.forward_ns = route.counters.forward_ns;
      report.steps = route.counters.steps;
      report.drafted = route.counters.drafted;
      report.accepted = route.counters.accepted;
      report.rejected = route.counters.rejected;
      report.discarded = route.counters.discarded;
      report.cut = route.counters.cut;
      report.lost = route.counters.sequences_lost;
      report.last_problem = route.last_problem.get();
      report.propose_calls = route.drafter->propose_stats.calls;
      report.propose_ns = route.drafter->propose_stats.total_ns;
      report.propose_failures = route.drafter->propose_stats.failures;
      report.verify_calls = route.verifier->verify_stats.calls;
      report.verify_ns = route.verifier->verify_stats.total_ns;
      report.verify_failures = route.verifier->verify_stats.failures;
      const auto add_call = [&](const std::string& plugin, const char* call,
                                const CallStats& stats) {
        report.calls.push_back({.plugin = plugin,
                                .call = call,
                                .calls = stats.calls,
                                .ns = stats.total_ns,
                                .failures = stats.failures});
      };
      add_call(report.drafter, "begin", route.drafter->begin_stats);
      add_call(report.drafter, "propose", route.drafter->propose_stats);
      add_call(report.drafter, "update", route.drafter->update_stats);
      add_call(report.verifier, "verify", route.verifier->verify_stats);
      const auto add_metrics = [&](const std::string& plugin, const char* kind,
                                   const specd_owner& owner) {
        for (PluginMetric& metric : plugin_metrics(owner)) {
          report.plugin_metrics.push_back({.plugin = plugin,
                                           .kind = kind,
                                           .name = std::move(metric.name),
                                           .help = std::move(metric.help),
                                           .counter = metric.counter,
                                           .value = metric.value});
        }
      };
      add_metrics(report.drafter, "drafter", route.drafter->owner());
      add_metrics(report.verifier, "verifier", route.verifier->owner());
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

ModelReport Engine::model() const {
  const Impl& m = *impl_;
  ModelReport report;
  report.name = m.options.model.name;
  report.path = m.options.model.path;
  report.architecture = m.config.architecture + (m.config.is_ballast ? " (ballast)" : "");
  report.dtype = dtype_name(m.model->weights_dtype());
  report.kv_dtype = dtype_name(kernel_dtype(m.options.model.kv_dtype));
  report.vocab_size = m.config.vocab_size;
  report.n_layers = m.config.n_layers;
  report.hidden_size = m.config.hidden_size;
  report.max_positions = m.config.max_positions;
  report.parameters = m.model->parameters();
  report.weight_bytes = m.model->weight_bytes();
  report.kv_bytes = m.kv->bytes();
  report.kv_pages_total = m.kv->n_pages();
  report.kv_pages_free = m.pages_free;
  report.page_tokens = kernels::kPageTokens;
  return report;
}

EngineReport Engine::status() const {
  Impl& m = *impl_;
  EngineReport report;
  {
    const std::lock_guard lock(m.mutex);
    report.state = m.draining ? "draining" : "ready";
    report.waiting = m.n_queued;
  }
  report.isa = m.device->ops().name;
  report.threads = m.device->threads();
  report.running = m.n_running;
  report.admitted = m.n_admitted;
  report.completed = m.n_completed;
  report.failed = m.n_failed;
  report.cancelled = m.n_cancelled;
  report.refused = m.n_refused;
  report.steps = m.n_steps;
  report.rows = m.n_rows;
  report.tokens = m.n_tokens;
  report.kv_moves = m.n_kv_moves;
  report.uptime_ns = now_ns() - m.started_ns;
  if (const uint64_t since = m.step_since_ns; since != 0) {
    report.step_age_ns = now_ns() - since;
  }
  return report;
}

std::vector<MemoryLine> Engine::memory() const {
  const Impl& m = *impl_;
  std::vector<MemoryLine> lines{
      {"weights of " + m.options.model.name, m.model->weight_bytes()},
      {"KV cache, " + std::to_string(m.kv->n_pages()) + " pages of " +
           std::to_string(kernels::kPageTokens) + " tokens",
       m.kv->bytes()},
      {"activations", m.model->activation_bytes()},
  };
  for (const auto& [name, route] : m.routes) {
    lines.push_back(
        {"drafter of route " + name + " (limit)", route->drafter->grant().memory_bytes_max});
  }
  return lines;
}

}  // namespace specd
