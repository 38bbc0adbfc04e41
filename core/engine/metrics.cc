// Everything the engine measures, by name. Built from the reports, so that a scrape and a status
// agree.
#include <algorithm>
#include <map>
#include <string_view>

#include "core/base/heartbeat.h"
#include "core/engine/impl.h"

namespace specd {

namespace {

using Type = MetricFamily::Type;
using Labels = std::vector<std::pair<std::string, std::string>>;

double seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

class Families {
 public:
  MetricFamily& add(Type type, const char* name, const char* help) {
    return families_.emplace_back(
        MetricFamily{.name = name, .help = help, .type = type, .bounds = {}, .series = {}});
  }
  void one(Type type, const char* name, const char* help, Labels labels, double value) {
    add(type, name, help).series.push_back(number(std::move(labels), value));
  }
  void one(Type type, const char* name, const char* help, Labels labels, uint64_t value) {
    one(type, name, help, std::move(labels), static_cast<double>(value));
  }
  template <typename Kind>
  void histogram(const char* name, const char* help, Labels labels, const Histogram<Kind>& values) {
    MetricFamily& family = add(Type::kHistogram, name, help);
    family.bounds = values.bounds();
    family.series.push_back(values.read());
    family.series.back().labels = std::move(labels);
  }
  // Adds a counter; `fn` appends the series of each report.
  template <typename Report, typename Fn>
  void each(const char* name, const char* help, const std::vector<Report>& reports, Fn&& fn) {
    MetricFamily& family = add(Type::kCounter, name, help);
    for (const Report& report : reports) fn(report, family.series);
  }
  static MetricSeries number(Labels labels, double value) {
    return {.labels = std::move(labels), .value = value, .counts = {}, .sum = 0};
  }
  std::vector<MetricFamily> take() && { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void add_requests(Families& families, const Labels& model, const EngineReport& status,
                  const RequestMetrics& requests) {
  MetricFamily& ended = families.add(Type::kCounter, "specd_requests_total",
                                     "Requests that ended or were refused, by outcome.");
  const auto outcome = [&](const char* name, uint64_t n) {
    Labels labels = model;
    labels.emplace_back("outcome", name);
    ended.series.push_back(Families::number(std::move(labels), static_cast<double>(n)));
  };
  for (size_t i = 1; i < kFinishReasonCount; ++i) {
    outcome(finish_reason_name(static_cast<FinishReason>(i)), requests.ended[i]);
  }
  outcome("refused", status.refused);
  families.one(Type::kGauge, "specd_requests_running",
               "Texts that are being written: a request with n choices has n.", model,
               static_cast<double>(status.running));
  families.one(Type::kGauge, "specd_requests_waiting",
               "Texts in the queue: a request with n choices has n.", model,
               static_cast<double>(status.waiting));
  families.one(Type::kCounter, "specd_prompt_tokens_total", "Prompt tokens of ended requests.",
               model, requests.prompt_tokens);
  families.one(Type::kCounter, "specd_generation_tokens_total", "Tokens generated.", model,
               status.tokens);
  families.histogram("specd_time_to_first_token_seconds",
                     "From the arrival of a request to its first token.", model,
                     requests.time_to_first_token);
  families.histogram("specd_inter_token_latency_seconds",
                     "Time per token after the first: the tokens of one step share the time since "
                     "the step before.",
                     model, requests.inter_token_latency);
  families.histogram("specd_e2e_request_latency_seconds",
                     "From the arrival of a request to its end.", model, requests.whole_time);
  families.histogram("specd_request_queue_time_seconds",
                     "From the arrival of a request to its first step.", model,
                     requests.queue_time);
  families.histogram("specd_request_prefill_time_seconds",
                     "From the first step of a request to its first token.", model,
                     requests.prefill_time);
  families.histogram("specd_request_decode_time_seconds",
                     "From the first token of a request to its end.", model, requests.decode_time);
  families.histogram("specd_request_prompt_tokens", "Tokens of the prompt of a text that ended.",
                     model, requests.prompt_lengths);
  families.histogram("specd_request_generation_tokens", "Tokens of a text that ended.", model,
                     requests.text_lengths);
  families.histogram("specd_request_max_num_generation_tokens",
                     "Tokens that a text that ended might have had.", model, requests.max_tokens);
}

void add_cache(Families& families, const Labels& model, const ModelReport& report) {
  // The counts are read one after another while steps run, so their sum may be off.
  const int32_t used =
      std::max(0, report.kv_pages_total - report.kv_pages_free - report.kv_pages_cached);
  families.one(Type::kGauge, "specd_kv_blocks", "Pages of the KV cache.", model,
               static_cast<double>(report.kv_pages_total));
  families.one(Type::kGauge, "specd_kv_blocks_free", "Pages that are free.", model,
               static_cast<double>(report.kv_pages_free));
  families.one(Type::kGauge, "specd_kv_blocks_cached",
               "Pages that only the prefix cache holds; evicted when they are needed.", model,
               static_cast<double>(report.kv_pages_cached));
  families.one(Type::kGauge, "specd_kv_blocks_used", "Pages that requests hold.", model,
               static_cast<double>(used));
  families.one(Type::kGauge, "specd_kv_usage_ratio", "Used pages divided by all pages, 0 to 1.",
               model, static_cast<double>(used) / report.kv_pages_total);
  families.one(Type::kCounter, "specd_prefix_cache_queries_total",
               "Prompt tokens that were looked up in the prefix cache.", model,
               report.prefix_query_tokens);
  families.one(Type::kCounter, "specd_prefix_cache_hits_total",
               "Prompt tokens that were found in the prefix cache and not computed.", model,
               report.prefix_hit_tokens);
}

void add_steps(Families& families, const Labels& model, const EngineReport& status,
               const StepRunner& runner, uint64_t forward_ns) {
  families.one(Type::kCounter, "specd_preemptions_total",
               "Times a running request lost its pages and waited again.", model,
               status.preemptions);
  families.one(Type::kCounter, "specd_deadline_misses_total",
               "Requests that ended with an error at their deadline.", model,
               status.deadline_misses);
  families.one(Type::kCounter, "specd_steps_total", "Steps of the engine.", model, status.steps);
  families.one(Type::kCounter, "specd_step_rows_total",
               "Rows of all forwards: prompt tokens, roots and draft nodes.", model, status.rows);
  families.one(Type::kCounter, "specd_kv_moves_total", "Rows moved within the KV cache.", model,
               status.kv_moves);
  families.histogram("specd_step_seconds",
                     "One step: drafts, forward, draw, verification, commit and updates.", model,
                     runner.step_time());
  families.histogram("specd_iteration_tokens",
                     "Tokens of one step: those of prompts that were computed, and new ones.",
                     model, runner.step_tokens());
  families.one(Type::kCounter, "specd_step_forward_seconds_total", "Time in the model's forward.",
               model, seconds(forward_ns));
}

void add_threads(Families& families) {
  std::vector<MetricSeries> busy, stuck;
  for (const ThreadReport& each : thread_reports()) {
    const Labels labels{{"thread", each.thread}, {"work", each.work}};
    const auto add = [&](std::vector<MetricSeries>& to, double value) {
      to.push_back({.labels = labels, .value = value, .counts = {}, .sum = 0});
    };
    add(busy, seconds(each.busy_ns));
    add(stuck, each.is_stuck() ? 1 : 0);
  }
  families
      .add(Type::kGauge, "specd_thread_busy_seconds",
           "Time since the present turn of a thread began; 0 when it waits for work. A drafter's "
           "thread is busy while it is in a call of the plugin.")
      .series = std::move(busy);
  families
      .add(Type::kGauge, "specd_thread_stuck",
           "1 while a turn takes longer than its thread may need. Never of the step and of "
           "drafters, which have limits of their own.")
      .series = std::move(stuck);
}

// `routes` excludes `off`, which has no plugins and counts only its requests.
void add_routes(Families& families, const RouteReport& off,
                const std::vector<RouteReport>& routes) {
  const auto labels = [](const RouteReport& route) {
    return Labels{{"model", route.options.model},
                  {"route", route.name()},
                  {"plugin", route.options.drafter.plugin}};
  };
  const auto count = [&](const char* name, const char* help, uint64_t RouteCounts::*field,
                         std::vector<MetricSeries> first = {}) {
    MetricFamily& family = families.add(Type::kCounter, name, help);
    family.series = std::move(first);
    for (const RouteReport& route : routes)
      family.series.push_back(
          Families::number(labels(route), static_cast<double>(route.counts.*field)));
  };
  count("specd_route_requests_total", "Requests admitted to the route.", &RouteCounts::requests,
        {Families::number({{"model", off.options.model}, {"route", off.name()}},
                          static_cast<double>(off.counts.requests))});
  count("specd_route_steps_total", "Times a sequence of the route decided a token.",
        &RouteCounts::steps);
  families.each(
      "specd_route_forward_seconds_total", "The route's share of the forwards, by rows.", routes,
      [&](const RouteReport& route, auto& series) {
        series.push_back(Families::number(labels(route), seconds(route.counts.forward_ns)));
      });
  count("specd_spec_decode_num_drafts_total", "Drafts with at least one node.",
        &RouteCounts::drafts);
  count("specd_spec_decode_num_draft_tokens_total", "Draft nodes that were forwarded.",
        &RouteCounts::drafted);
  count("specd_spec_decode_num_accepted_tokens_total", "Draft nodes that became text.",
        &RouteCounts::accepted);
  families.each("specd_spec_decode_num_accepted_tokens_per_pos_total",
                "Draft nodes that became text, by their distance from the root, from 0.", routes,
                [&](const RouteReport& route, auto& series) {
                  for (size_t i = 0; i < route.counts.accepted_at.size(); ++i) {
                    Labels with = labels(route);
                    with.emplace_back("position", std::to_string(i));
                    series.push_back(Families::number(
                        std::move(with), static_cast<double>(route.counts.accepted_at[i])));
                  }
                });
  count("specd_spec_decode_num_rejected_tokens_total", "Draft nodes that verification rejected.",
        &RouteCounts::rejected);
  count("specd_spec_decode_num_discarded_tokens_total",
        "Probes, and draft nodes accepted beyond the end of a text.", &RouteCounts::discarded);
  count("specd_spec_decode_cut_total", "Proposals and verdicts in which validation found a defect.",
        &RouteCounts::cut);
  count("specd_spec_decode_lost_requests_total",
        "Requests that went on without drafts: the drafter failed, or the text is too long for it.",
        &RouteCounts::lost);
  families.each("specd_spec_decode_suspensions_total", "Times the drafter was suspended, by rule.",
                routes, [&](const RouteReport& route, auto& series) {
                  for (size_t i = 0; i < route.counts.suspensions.size(); ++i) {
                    Labels with = labels(route);
                    with.emplace_back("rule", kSuspensionRuleNames[i]);
                    series.push_back(Families::number(
                        std::move(with), static_cast<double>(route.counts.suspensions[i])));
                  }
                });
  count("specd_spec_decode_hidden_bytes_total",
        "Bytes of hidden states that were copied for a drafter beside the step.",
        &RouteCounts::hidden_bytes);
  count("specd_drafter_process_ends_total",
        "Times the process of the drafter has ended by itself, or was killed for what it did.",
        &RouteCounts::process_ends);

  const auto gauge = [&](const char* name, const char* help, auto RouteReport::*field) {
    MetricFamily& family = families.add(Type::kGauge, name, help);
    for (const RouteReport& route : routes) {
      family.series.push_back(Families::number(labels(route), static_cast<double>(route.*field)));
    }
  };
  gauge("specd_route_suspended",
        "1 while the route does not draft: too many sequences run (disable_by_batch_size), or the "
        "drafter is suspended.",
        &RouteReport::suspended);
  MetricFamily& quarantined =
      families.add(Type::kGauge, "specd_route_quarantined",
                   "1 while the drafter is not called any more: its call does not return, or its "
                   "process dies again and again.");
  for (const RouteReport& route : routes) {
    quarantined.series.push_back(
        Families::number(labels(route), route.state == RouteState::kQuarantined ? 1.0 : 0.0));
  }
  gauge("specd_plugin_memory_bytes",
        "Memory that the drafter of the live route holds through the memory service.",
        &RouteReport::memory_bytes);
  gauge("specd_plugin_memory_limit_bytes", "The most memory that the drafter may hold.",
        &RouteReport::memory_bytes_max);

  families.each(
      "specd_plugin_defects_total",
      "Proposals of the drafter and verdicts of the verifier in which validation found a defect.",
      routes, [&](const RouteReport& route, auto& series) {
        const auto one = [&](const PluginUse& plugin, uint64_t n) {
          series.push_back(Families::number({{"route", route.name()}, {"plugin", plugin.plugin}},
                                            static_cast<double>(n)));
        };
        const RouteCounts& n = route.counts;
        const bool is_one_plugin = route.options.drafter.plugin == route.options.verifier.plugin;
        one(route.options.drafter, is_one_plugin ? n.cut : n.cut - n.cut_verdicts);
        if (!is_one_plugin) one(route.options.verifier, n.cut_verdicts);
      });
  const auto by_call = [&](const char* name, const char* help, auto&& value) {
    families.each(name, help, routes, [&](const RouteReport& route, auto& series) {
      if (!has_pair(route.state)) return;
      const auto one = [&](const PluginUse& plugin, const char* call, const CallCounts& counts) {
        series.push_back(Families::number(
            {{"route", route.name()}, {"plugin", plugin.plugin}, {"call", call}}, value(counts)));
      };
      one(route.options.drafter, "begin", route.counts.begin);
      one(route.options.drafter, "propose", route.counts.propose);
      one(route.options.drafter, "update", route.counts.update);
      one(route.options.verifier, "verify", route.counts.verify);
    });
  };
  by_call("specd_plugin_calls_total", "Calls of plugins.",
          [](const CallCounts& counts) { return static_cast<double>(counts.calls); });
  by_call("specd_plugin_call_seconds_total", "Time in calls of plugins.",
          [](const CallCounts& counts) { return seconds(counts.ns); });
  by_call("specd_plugin_failures_total", "Calls of plugins that failed.",
          [](const CallCounts& counts) { return static_cast<double>(counts.failures); });
}

// The metrics that plugins define. Counters end in _total and gauges never do, so that a name has
// one type whatever plugins choose. Of series with equal labels only the first is kept.
void add_plugin_metrics(std::vector<MetricFamily>& families,
                        const std::vector<RouteReport>& routes) {
  constexpr std::string_view kTotal = "_total";
  std::map<std::string, MetricFamily> by_name;
  for (const RouteReport& route : routes) {
    for (const PluginMetricReport& metric : route.counts.of_plugins) {
      std::string name = "specd_plugin_metric_" + metric.name;
      while (name.ends_with(kTotal)) name.resize(name.size() - kTotal.size());
      if (metric.counter) name += kTotal;
      MetricFamily& family = by_name[name];
      if (family.name.empty()) {
        family.name = name;
        family.help = metric.help;
        family.type = metric.counter ? Type::kCounter : Type::kGauge;
      }
      Labels labels{{"route", route.name()}, {"plugin", metric.plugin}, {"kind", metric.kind}};
      const bool is_new =
          std::none_of(family.series.begin(), family.series.end(),
                       [&](const MetricSeries& series) { return series.labels == labels; });
      if (is_new) family.series.push_back(Families::number(std::move(labels), metric.value));
    }
  }
  for (auto& [name, family] : by_name) families.push_back(std::move(family));
}

}  // namespace

std::vector<MetricFamily> Engine::metrics() const {
  const EngineReport status = this->status();
  const ModelReport model = this->model();
  std::vector<RouteReport> served = routes();
  const RouteReport off = served.front();
  // A route's series continue over its generations, so other versions than the live one have none.
  std::erase_if(served, [](const RouteReport& route) {
    return route.name() == "off" || !stands_for_route(route.state);
  });

  const Labels model_label{{"model", model.name}};
  Families families;
  families.one(Type::kGauge, "specd_uptime_seconds", "Time since the engine began to load.", {},
               seconds(status.uptime_ns));
  families.one(Type::kGauge, "specd_drain_state", "1 while the engine drains.", {},
               status.state == EngineState::kDraining ? 1.0 : 0.0);
  families.one(Type::kGauge, "specd_step_age_seconds",
               "Time since the current step began; 0 when the step thread is idle.", {},
               seconds(status.step_age_ns));
  add_threads(families);
  add_requests(families, model_label, status, impl_->request_metrics);
  add_cache(families, model_label, model);
  add_steps(families, model_label, status, *impl_->runner, impl_->models.worker->forward_ns());
  add_routes(families, off, served);
  std::vector<MetricFamily> all = std::move(families).take();
  add_plugin_metrics(all, served);
  std::erase_if(all, [](const MetricFamily& family) { return family.series.empty(); });
  return all;
}

}  // namespace specd
