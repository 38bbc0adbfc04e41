#include "host/triton/contract.h"

#include <algorithm>
#include <array>

#include "core/base/quote.h"

namespace specd::host {
namespace {

constexpr std::array kInputs = {
    TensorSpec{kTextInput, Datatype::kBytes},
    TensorSpec{"stream", Datatype::kBool},
    TensorSpec{"streaming", Datatype::kBool},
    TensorSpec{"exclude_input_in_output", Datatype::kBool},
    TensorSpec{"sampling_param_exclude_input_from_output", Datatype::kBool},
    TensorSpec{"sampling_param_return_perf_metrics", Datatype::kBool},
    TensorSpec{"return_finish_reason", Datatype::kBool},
    TensorSpec{"return_stop_reason", Datatype::kBool},
    TensorSpec{"return_cumulative_logprob", Datatype::kBool},
    TensorSpec{"stop", Datatype::kBool},
    TensorSpec{"stop_words", Datatype::kBytes, true},
    TensorSpec{"sampling_param_stop", Datatype::kBytes, true},
    TensorSpec{"min_length", Datatype::kInt32},
    TensorSpec{"max_tokens", Datatype::kInt32},
    TensorSpec{"sampling_param_max_tokens", Datatype::kInt32},
    TensorSpec{"min_tokens", Datatype::kInt32},
    TensorSpec{"sampling_param_min_tokens", Datatype::kInt32},
    TensorSpec{"ignore_eos", Datatype::kBool},
    TensorSpec{"sampling_param_ignore_eos", Datatype::kBool},
    TensorSpec{"best_of", Datatype::kInt32},
    TensorSpec{"sampling_param_best_of", Datatype::kInt32},
    TensorSpec{"seed", Datatype::kUint64},
    TensorSpec{"sampling_param_seed", Datatype::kUint64},
    TensorSpec{"temperature", Datatype::kFp32},
    TensorSpec{"sampling_param_temperature", Datatype::kFp32},
    TensorSpec{"top_k", Datatype::kInt32},
    TensorSpec{"sampling_param_top_k", Datatype::kInt32},
    TensorSpec{"top_p", Datatype::kFp32},
    TensorSpec{"sampling_param_top_p", Datatype::kFp32},
    TensorSpec{"min_p", Datatype::kFp32},
    TensorSpec{"sampling_param_min_p", Datatype::kFp32},
    TensorSpec{"repetition_penalty", Datatype::kFp32},
    TensorSpec{"sampling_param_repetition_penalty", Datatype::kFp32},
    TensorSpec{"frequency_penalty", Datatype::kFp32},
    TensorSpec{"sampling_param_frequency_penalty", Datatype::kFp32},
    TensorSpec{"presence_penalty", Datatype::kFp32},
    TensorSpec{"sampling_param_presence_penalty", Datatype::kFp32},
};

constexpr std::array kOutputs = {
    "text_output",         "finish_reason",         "stop_reason",
    "cumulative_logprob",  "acceptance_rate",       "total_accepted_draft_tokens",
    "total_draft_tokens",  "kv_cache_reused_block", "kv_cache_missed_block",
    "kv_cache_hit_rate",   "arrival_time_ns",       "first_scheduled_time_ns",
    "first_token_time_ns", "last_token_time_ns"};

}  // namespace

const char* datatype_name(Datatype type) {
  switch (type) {
    case Datatype::kBool:
      return "BOOL";
    case Datatype::kInt32:
      return "INT32";
    case Datatype::kUint64:
      return "UINT64";
    case Datatype::kFp32:
      return "FP32";
    case Datatype::kBytes:
      return "BYTES";
  }
  return "";
}

const char* datatype_config_name(Datatype type) {
  switch (type) {
    case Datatype::kBool:
      return "TYPE_BOOL";
    case Datatype::kInt32:
      return "TYPE_INT32";
    case Datatype::kUint64:
      return "TYPE_UINT64";
    case Datatype::kFp32:
      return "TYPE_FP32";
    case Datatype::kBytes:
      return "TYPE_STRING";
  }
  return "";
}

std::span<const char* const> triton_extensions() {
  static constexpr std::array kExtensions = {"generate", "model_configuration",
                                             "binary_tensor_data", "parameters", "statistics"};
  return kExtensions;
}

std::span<const TensorSpec> infer_inputs() { return kInputs; }
std::span<const char* const> infer_outputs() { return kOutputs; }

const TensorSpec* find_input(std::string_view name) {
  const auto found = std::find_if(kInputs.begin(), kInputs.end(),
                                  [name](const TensorSpec& each) { return each.name == name; });
  return found == kInputs.end() ? nullptr : &*found;
}

Status TritonModel::check(std::string_view asked, std::string_view asked_version) const {
  if (asked == name && (asked_version.empty() || asked_version == version)) return Status();
  return {Code::kNotFound, "Request for unknown model: " + quote(asked) +
                               (asked_version.empty() ? "" : " version " + quote(asked_version)) +
                               " is not found; this server has " + quote(name) + " version " +
                               version};
}

}  // namespace specd::host
