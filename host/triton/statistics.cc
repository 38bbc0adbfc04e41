#include "host/triton/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

namespace specd::host {
namespace {

const MetricFamily* find(const std::vector<MetricFamily>& metrics, std::string_view name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [name](const MetricFamily& each) { return each.name == name; });
  return found == metrics.end() ? nullptr : &*found;
}

uint64_t whole(double value) { return static_cast<uint64_t>(std::max(0.0, std::round(value))); }

// The sum over the series, of those with this label where one is named.
uint64_t count(const std::vector<MetricFamily>& metrics, std::string_view name,
               std::string_view label = "", std::string_view label_value = "") {
  const MetricFamily* const family = find(metrics, name);
  if (family == nullptr) return 0;
  double sum = 0;
  for (const MetricSeries& each : family->series) {
    const bool has_label =
        label.empty() || std::any_of(each.labels.begin(), each.labels.end(), [&](const auto& pair) {
          return pair.first == label && pair.second == label_value;
        });
    if (has_label) sum += each.value;
  }
  return whole(sum);
}

// Of a histogram in seconds.
InferStatistics::Duration duration(const std::vector<MetricFamily>& metrics,
                                   std::string_view name) {
  constexpr double kNanoseconds = 1e9;
  InferStatistics::Duration out;
  const MetricFamily* const family = find(metrics, name);
  if (family == nullptr) return out;
  for (const MetricSeries& each : family->series) {
    out.count += std::accumulate(each.counts.begin(), each.counts.end(), uint64_t{0});
    out.ns += whole(each.sum * kNanoseconds);
  }
  return out;
}

}  // namespace

InferStatistics infer_statistics(const std::vector<MetricFamily>& metrics) {
  const auto ended = [&](std::string_view outcome) {
    return count(metrics, "specd_requests_total", "outcome", outcome);
  };
  InferStatistics all;
  all.inference_count = ended("stop") + ended("length");
  all.execution_count = count(metrics, "specd_steps_total");
  all.success = {all.inference_count, duration(metrics, "specd_e2e_request_latency_seconds").ns};
  all.queue = duration(metrics, "specd_request_queue_time_seconds");
  all.compute_input = duration(metrics, "specd_request_prefill_time_seconds");
  all.compute_infer = duration(metrics, "specd_request_decode_time_seconds");
  all.compute_output.count = all.inference_count;
  all.n_cancelled = ended("cancelled");
  all.n_refused = ended("refused");
  all.n_failed = ended("error");
  all.fail.count = all.n_cancelled + all.n_refused + all.n_failed;
  all.n_pending = count(metrics, "specd_requests_waiting");
  return all;
}

std::vector<MetricFamily> triton_names(const InferStatistics& statistics,
                                       const TritonModel& model) {
  std::vector<MetricFamily> all;
  const auto labels = [&model] {
    return std::vector<std::pair<std::string, std::string>>{{"model", model.name},
                                                            {"version", model.version}};
  };
  const auto add = [&](const char* name, const char* help, uint64_t value,
                       MetricFamily::Type type = MetricFamily::Type::kCounter) -> MetricFamily& {
    MetricFamily& family = all.emplace_back(
        MetricFamily{.name = name, .help = help, .type = type, .bounds = {}, .series = {}});
    family.series.push_back(
        {.labels = labels(), .value = static_cast<double>(value), .counts = {}, .sum = 0});
    return family;
  };
  constexpr uint64_t kMicrosecond = 1000;
  add("nv_inference_request_success", "Requests whose text is complete.",
      statistics.inference_count);
  MetricFamily& failed = add("nv_inference_request_failure",
                             "Requests that were refused or did not complete, by reason.", 0);
  failed.series.clear();
  const auto add_reason = [&](const char* reason, uint64_t value) {
    failed.series.push_back(
        {.labels = labels(), .value = static_cast<double>(value), .counts = {}, .sum = 0});
    failed.series.back().labels.emplace_back("reason", reason);
  };
  add_reason("REJECTED", statistics.n_refused);
  add_reason("CANCELED", statistics.n_cancelled);
  add_reason("BACKEND", statistics.n_failed);
  add_reason("OTHER", 0);
  add("nv_inference_count", "Texts that are complete.", statistics.inference_count);
  add("nv_inference_exec_count", "Steps of the engine.", statistics.execution_count);
  add("nv_inference_request_duration_us", "Time of complete requests, from arrival to the end.",
      statistics.success.ns / kMicrosecond);
  add("nv_inference_queue_duration_us", "Time that requests waited.",
      statistics.queue.ns / kMicrosecond);
  add("nv_inference_compute_input_duration_us", "Time that prompts took.",
      statistics.compute_input.ns / kMicrosecond);
  add("nv_inference_compute_infer_duration_us", "Time that new tokens took.",
      statistics.compute_infer.ns / kMicrosecond);
  add("nv_inference_compute_output_duration_us", "Always 0: outputs take no time of their own.", 0);
  add("nv_inference_pending_request_count", "Texts in the queue.", statistics.n_pending,
      MetricFamily::Type::kGauge);
  return all;
}

}  // namespace specd::host
