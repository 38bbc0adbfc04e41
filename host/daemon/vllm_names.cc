#include "host/daemon/vllm_names.h"

#include <map>
#include <string>
#include <utility>

namespace specd::host {

void add_vllm_names(std::vector<MetricFamily>& families) {
  static const std::map<std::string, std::string> kNames{
      {"specd_requests_running", "vllm:num_requests_running"},
      {"specd_requests_waiting", "vllm:num_requests_waiting"},
      {"specd_kv_usage_ratio", "vllm:kv_cache_usage_perc"},
      {"specd_preemptions_total", "vllm:num_preemptions_total"},
      {"specd_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
      {"specd_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
      {"specd_prompt_tokens_total", "vllm:prompt_tokens_total"},
      {"specd_generation_tokens_total", "vllm:generation_tokens_total"},
      {"specd_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
      {"specd_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
      {"specd_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
      {"specd_spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"},
      {"specd_spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
      {"specd_spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
      {"specd_spec_decode_num_accepted_tokens_per_pos_total",
       "vllm:spec_decode_num_accepted_tokens_per_pos_total"},
  };
  std::vector<MetricFamily> copies;
  for (const MetricFamily& family : families) {
    const auto found = kNames.find(family.name);
    if (found == kNames.end()) continue;
    MetricFamily copy = family;
    copy.name = found->second;
    copy.help = "The same as " + family.name + ".";
    for (MetricSeries& series : copy.series) {
      for (auto& [label, value] : series.labels) {
        if (label == "model") label = "model_name";
      }
    }
    copies.push_back(std::move(copy));
  }
  for (MetricFamily& copy : copies) families.push_back(std::move(copy));
}

}  // namespace specd::host
