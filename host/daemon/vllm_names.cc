#include "host/daemon/vllm_names.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace specd::host {
namespace {

// The names of vLLM's versions, the older ones too: its dashboards need either.
const std::multimap<std::string, std::string>& names() {
  static const std::multimap<std::string, std::string> kNames{
      {"specd_requests_running", "vllm:num_requests_running"},
      {"specd_requests_waiting", "vllm:num_requests_waiting"},
      {"specd_kv_usage_ratio", "vllm:kv_cache_usage_perc"},
      {"specd_kv_usage_ratio", "vllm:gpu_cache_usage_perc"},
      {"specd_preemptions_total", "vllm:num_preemptions_total"},
      {"specd_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
      {"specd_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
      {"specd_prompt_tokens_total", "vllm:prompt_tokens_total"},
      {"specd_generation_tokens_total", "vllm:generation_tokens_total"},
      {"specd_requests_total", "vllm:request_success_total"},
      {"specd_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
      {"specd_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
      {"specd_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
      {"specd_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
      {"specd_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
      {"specd_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
      {"specd_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
      {"specd_request_prompt_tokens", "vllm:request_prompt_tokens"},
      {"specd_request_generation_tokens", "vllm:request_generation_tokens"},
      {"specd_request_max_num_generation_tokens", "vllm:request_max_num_generation_tokens"},
      {"specd_iteration_tokens", "vllm:iteration_tokens_total"},
      {"specd_spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"},
      {"specd_spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
      {"specd_spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
      {"specd_spec_decode_num_accepted_tokens_per_pos_total",
       "vllm:spec_decode_num_accepted_tokens_per_pos_total"},
  };
  return kNames;
}

constexpr char kOutcome[] = "outcome";

// vLLM counts no requests that it refuses.
bool is_refused(const MetricSeries& series) {
  return std::any_of(series.labels.begin(), series.labels.end(), [](const auto& label) {
    return label.first == kOutcome && label.second == "refused";
  });
}

// In vLLM's words: model_name and engine first, then what is left.
void rename_labels(MetricSeries& series) {
  auto labels = std::exchange(series.labels, {});
  for (auto& [name, value] : labels) {
    if (name == "model") series.labels.emplace_back("model_name", value);
  }
  series.labels.emplace_back("engine", "0");
  for (auto& [name, value] : labels) {
    if (name == "model") continue;
    if (name == kOutcome) {
      series.labels.emplace_back("finished_reason", value == "cancelled" ? "abort" : value);
    } else {
      series.labels.emplace_back(std::move(name), std::move(value));
    }
  }
}

}  // namespace

void add_vllm_names(std::vector<MetricFamily>& families) {
  std::vector<MetricFamily> copies;
  for (const MetricFamily& family : families) {
    const auto [begin, end] = names().equal_range(family.name);
    for (auto found = begin; found != end; ++found) {
      MetricFamily copy = family;
      copy.name = found->second;
      copy.help = "The same as " + family.name + ".";
      std::erase_if(copy.series, is_refused);
      for (MetricSeries& series : copy.series) rename_labels(series);
      copies.push_back(std::move(copy));
    }
  }
  for (MetricFamily& copy : copies) families.push_back(std::move(copy));
}

}  // namespace specd::host
