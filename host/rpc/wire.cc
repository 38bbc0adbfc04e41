#include "host/rpc/wire.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/heartbeat.h"
#include "host/rpc/proto_text.h"
#include "host/version.h"

namespace specd::host {
namespace {

// The memory of a parsed request without its ids. A message has at most 4 MiB; only unknown fields
// or very many small ones take more memory than this.
constexpr size_t kRequestBytesMax = 8 << 20;
// The message of an error: clients accept 8 KiB of metadata, and encoding may triple a byte.
constexpr size_t kStatusBytesMax = 2048;

Status wrong(const std::string& field, const std::string& text) {
  return Status(Code::kInvalidArgument, field, text);
}

double ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

SamplingRequest sampling_from_wire(const v1::Sampling& wire) {
  SamplingRequest out;
  if (wire.has_temperature()) out.temperature = wire.temperature();
  if (wire.has_top_p()) out.top_p = wire.top_p();
  if (wire.has_top_k()) out.top_k = wire.top_k();
  if (wire.has_seed()) out.seed = wire.seed();
  if (wire.has_min_p()) out.min_p = wire.min_p();
  if (wire.has_typical_p()) out.typical_p = wire.typical_p();
  if (wire.has_repetition_penalty()) out.repetition_penalty = wire.repetition_penalty();
  if (wire.has_frequency_penalty()) out.frequency_penalty = wire.frequency_penalty();
  if (wire.has_presence_penalty()) out.presence_penalty = wire.presence_penalty();
  return out;
}

ChatPrompt chat_from_wire(const v1::ChatPrompt& wire) {
  ChatPrompt chat;
  for (const v1::ChatMessage& message : wire.messages())
    chat.messages.push_back({message.role(), message.content(), message.extra_json()});
  chat.tools_json = wire.tools_json();
  chat.template_arguments_json = wire.template_arguments_json();
  chat.continue_final_message = wire.continue_final_message();
  chat.add_generation_prompt = wire.has_add_generation_prompt() ? wire.add_generation_prompt()
                                                                : !wire.continue_final_message();
  chat.parse_special_tokens_in_messages = wire.parse_special_tokens_in_messages();
  return chat;
}

}  // namespace

v1::Sampling sampling_to_wire(const SamplingParams& sampling) {
  v1::Sampling wire;
  wire.set_temperature(sampling.temperature);
  wire.set_top_p(sampling.top_p);
  wire.set_top_k(sampling.top_k);
  wire.set_seed(sampling.seed);
  wire.set_min_p(sampling.min_p);
  wire.set_typical_p(sampling.typical_p);
  wire.set_repetition_penalty(sampling.repetition_penalty);
  wire.set_frequency_penalty(sampling.frequency_penalty);
  wire.set_presence_penalty(sampling.presence_penalty);
  return wire;
}

v1::Logprobs logprobs_to_wire(const Logprobs& logprobs) {
  v1::Logprobs wire;
  wire.mutable_token()->Add(logprobs.token.begin(), logprobs.token.end());
  wire.mutable_top_token_ids()->Add(logprobs.top_token.begin(), logprobs.top_token.end());
  wire.mutable_top()->Add(logprobs.top.begin(), logprobs.top.end());
  return wire;
}

Result<Request> request_from_wire(const v1::GenerateRequest& wire) {
  const auto ids = static_cast<size_t>(wire.token_ids().ids_size());
  const size_t bytes_max = kRequestBytesMax + 2 * sizeof(int32_t) * ids;  // arrays double
  if (const size_t bytes = wire.SpaceUsedLong(); bytes > bytes_max)
    return wrong("request",
                 "expected at most " + std::to_string(bytes_max) + " bytes in memory, found " +
                     std::to_string(bytes) +
                     ": fields that this version does not know, or very many small ones");
  Request request;
  switch (wire.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (wire.text().empty()) return wrong("text", "expected a prompt, found an empty one");
      request.prompt = wire.text();
      break;
    case v1::GenerateRequest::kTokenIds:
      if (wire.token_ids().ids().empty())
        return wrong("token_ids", "expected at least one id, found none");
      request.prompt_tokens.emplace(wire.token_ids().ids().begin(), wire.token_ids().ids().end());
      break;
    case v1::GenerateRequest::kChat:
      request.chat = chat_from_wire(wire.chat());
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return wrong("prompt", "expected text, token_ids or chat, found none");
  }
  for (const auto& [field, is_given] :
       {std::pair("parse_special_tokens", wire.has_parse_special_tokens()),
        std::pair("add_bos", wire.has_add_bos())}) {
    if (is_given && wire.prompt_case() != v1::GenerateRequest::kText)
      return wrong(field, "goes with a prompt in text only");
  }
  if (wire.has_parse_special_tokens()) request.parse_special_tokens = wire.parse_special_tokens();
  if (wire.has_add_bos()) request.add_bos = wire.add_bos();
  request.sampling = sampling_from_wire(wire.sampling());
  request.max_tokens = wire.max_tokens();
  request.min_tokens = wire.min_tokens();
  for (const auto& [token, add] : wire.logit_bias()) {
    request.logit_bias.push_back({.token = token, .add = add});
  }
  request.stop.assign(wire.stop().begin(), wire.stop().end());
  request.stop_tokens.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  request.ignore_eos = wire.ignore_eos();
  request.route = wire.route();
  request.id = wire.request_id();
  request.priority = wire.priority();
  request.deadline_ms = wire.deadline_ms();
  request.cache_salt = wire.cache_salt();
  if (wire.has_draft_nodes_max()) request.draft_nodes_max = wire.draft_nodes_max();
  if (wire.has_logprobs()) request.logprobs = wire.logprobs();
  if (wire.has_prompt_logprobs()) request.prompt_logprobs = wire.prompt_logprobs();
  request.echo = wire.echo();
  if (wire.has_n()) request.n = wire.n();
  request.best_of = wire.best_of();
  return request;
}

Status with_wire_field(const Status& status) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"stop_tokens", "stop_token_ids"}, {"prompt_tokens", "token_ids"}, {"prompt", "text"}};
  const std::string& field = status.field();
  const size_t end = std::min(field.find_first_of(".["), field.size());
  for (const auto& [ours, wire] : kNames)
    if (field.substr(0, end) == ours)
      return Status(status.code(), std::string(wire) + field.substr(end), status.message());
  return status;
}

grpc::Status status_to_wire(const Status& status) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (status.code()) {
    case Code::kOk:
      return grpc::Status::OK;
    case Code::kInvalidArgument:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case Code::kNotFound:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case Code::kFailedPrecondition:
      code = grpc::StatusCode::FAILED_PRECONDITION;
      break;
    case Code::kPermissionDenied:
      code = grpc::StatusCode::PERMISSION_DENIED;
      break;
    case Code::kExhausted:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    case Code::kUnsupported:
      code = grpc::StatusCode::UNIMPLEMENTED;
      break;
    case Code::kDataLoss:
      code = grpc::StatusCode::DATA_LOSS;
      break;
    case Code::kCancelled:
      code = grpc::StatusCode::CANCELLED;
      break;
    case Code::kDeadlineExceeded:
      code = grpc::StatusCode::DEADLINE_EXCEEDED;
      break;
    case Code::kUnavailable:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    case Code::kInternal:
      code = grpc::StatusCode::INTERNAL;
      break;
  }
  std::string message = status.text();
  if (message.size() > kStatusBytesMax) {
    size_t end = kStatusBytesMax;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
    message.replace(end, std::string::npos, " ...");
  }
  return {code, message};
}

v1::FinishReason finish_reason_to_wire(FinishReason reason) {
  return reason == FinishReason::kStop     ? v1::FINISH_REASON_STOP
         : reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH
                                           : v1::FINISH_REASON_UNSPECIFIED;
}

v1::Finished finished_to_wire(const std::string& request_id, FinishReason reason,
                              const Usage& usage) {
  v1::Finished wire;
  wire.set_request_id(request_id);
  wire.set_finish_reason(finish_reason_to_wire(reason));
  wire.mutable_usage()->set_prompt_tokens(usage.prompt_tokens);
  wire.mutable_usage()->set_completion_tokens(usage.completion_tokens);
  wire.mutable_usage()->set_cached_prompt_tokens(usage.cached_prompt_tokens);
  wire.mutable_usage()->set_preemptions(usage.preemptions);
  v1::Speculation& speculation = *wire.mutable_speculation();
  speculation.set_total_draft_tokens(usage.draft_tokens);
  speculation.set_total_accepted_draft_tokens(usage.accepted_tokens);
  speculation.set_total_rejected_draft_tokens(usage.rejected_tokens);
  speculation.set_total_discarded_draft_tokens(usage.discarded_tokens);
  speculation.set_acceptance_rate(ratio(usage.accepted_tokens, usage.draft_tokens));
  speculation.set_mean_accepted_length(ratio(usage.accepted_tokens, usage.steps));
  speculation.set_decode_steps(usage.steps);
  wire.mutable_times()->set_queue_ms(ms(usage.queue_ns));
  wire.mutable_times()->set_prefill_ms(ms(usage.prefill_ns));
  wire.mutable_times()->set_decode_ms(ms(usage.decode_ns));
  return wire;
}

v1::Plugin plugin_to_wire(const PluginReport& report) {
  v1::Plugin wire;
  wire.set_id(report.id);
  wire.set_version(report.version);
  wire.set_license(report.license);
  wire.set_directory(report.directory);
  wire.set_sha256(report.sha256);
  wire.set_state(enum_value<v1::PluginState>(plugin_state_name(report.state)));
  wire.set_reason(report.reason);
  for (const auto& [id, kind] : report.factories) {
    v1::PluginFactory& factory = *wire.add_factories();
    factory.set_id(id);
    factory.set_kind(enum_value<v1::PluginKind>(kind));
  }
  return wire;
}

v1::Event event_to_wire(const EngineEvent& event) {
  v1::Event wire;
  wire.set_number(event.number);
  wire.set_unix_ns(event.unix_ns);
  wire.set_kind(enum_value<v1::EventKind>(event_kind_name(event.kind)));
  wire.set_route(event.route);
  wire.set_generation(event.generation);
  wire.set_text(event.text);
  wire.set_request_id(event.request_id);
  return wire;
}

v1::ListRequestsResponse requests_to_wire(const RequestList& list) {
  v1::ListRequestsResponse wire;
  wire.set_running(list.n_running);
  wire.set_waiting(list.n_waiting);
  for (const RequestReport& report : list.requests) {
    v1::RequestInfo& one = *wire.add_requests();
    one.set_request_id(report.id);
    one.set_index(report.index);
    one.set_running(report.is_running);
    one.set_route(report.route);
    one.set_generation(report.generation);
    one.set_drafting(report.is_drafting);
    one.set_priority(report.priority);
    one.set_prompt_tokens(report.prompt_tokens);
    one.set_completion_tokens(report.output_tokens);
    one.set_max_tokens(report.max_tokens);
    one.set_kv_pages(report.kv_pages);
    one.set_preemptions(report.preemptions);
    one.set_age_s(static_cast<double>(report.age_ns) / 1e9);
    one.set_draft_tokens(report.drafted);
    one.set_accepted_draft_tokens(report.accepted);
  }
  return wire;
}

Result<RunningRequests> running_from_wire(v1::RunningRequests running) {
  switch (running) {
    case v1::RUNNING_REQUESTS_UNSPECIFIED:
    case v1::RUNNING_REQUESTS_KEEP:
      return RunningRequests::kKeep;
    case v1::RUNNING_REQUESTS_ATTACH:
      return RunningRequests::kAttach;
    case v1::RUNNING_REQUESTS_DROP:
      return RunningRequests::kDrop;
    default:
      return Status(Code::kInvalidArgument, "running",
                    "expected keep, attach or drop, found the number " + std::to_string(running));
  }
}

v1::RouteEffect effect_to_wire(const RouteChange& change) {
  v1::RouteEffect wire;
  wire.set_memory_bytes_max(change.memory_bytes_max);
  wire.set_memory_peak_bytes(change.memory_peak_bytes);
  wire.set_memory_limit_bytes(change.memory_limit_bytes);
  wire.set_attached(change.n_attached);
  wire.set_dropped(change.n_dropped);
  wire.set_kept(change.n_kept);
  return wire;
}

v1::Route route_to_wire(const RouteReport& report) {
  const RouteCounts& counts = report.counts;
  v1::Route wire;
  wire.set_name(report.name());
  wire.set_model(report.options.model);
  wire.set_drafter(report.options.drafter.plugin);
  wire.set_verifier(report.options.verifier.plugin);
  wire.set_guarantee(enum_value<v1::Guarantee>(guarantee_name(report.options.guarantee)));
  wire.set_state(enum_value<v1::RouteState>(route_state_name(report.state)));
  if (!report.refused.ok()) wire.set_reason(report.refused.to_string());
  wire.set_is_default(report.is_default);
  wire.set_draft_nodes_max(report.draft_nodes_max);
  wire.set_requests(counts.requests);
  wire.set_steps(counts.steps);
  wire.set_drafted(counts.drafted);
  wire.set_accepted(counts.accepted);
  wire.set_rejected(counts.rejected);
  wire.set_discarded(counts.discarded);
  wire.set_drafts(counts.drafts);
  wire.mutable_accepted_at()->Add(counts.accepted_at.begin(), counts.accepted_at.end());
  wire.set_cut(counts.cut);
  wire.set_propose_calls(counts.propose.calls);
  wire.set_propose_ns(counts.propose.ns);
  wire.set_propose_failures(counts.propose.failures);
  wire.set_verify_calls(counts.verify.calls);
  wire.set_verify_ns(counts.verify.ns);
  wire.set_verify_failures(counts.verify.failures);
  wire.set_lost(counts.lost);
  wire.set_last_problem(report.last_problem);
  wire.set_generation(report.generation);
  wire.set_share_percent(report.share_percent);
  wire.set_in_use(report.in_use);
  wire.set_drafter_version(report.drafter.version);
  wire.set_verifier_version(report.verifier.version);
  wire.set_drafter_sha256(report.drafter.sha256);
  wire.set_verifier_sha256(report.verifier.sha256);
  wire.set_disable_by_batch_size(report.options.disable_by_batch_size);
  wire.set_suspended(report.suspended);
  wire.set_memory_bytes(report.memory_bytes);
  wire.set_memory_bytes_max(report.memory_bytes_max);
  return wire;
}

v1::Model model_to_wire(const ModelReport& report) {
  v1::Model wire;
  wire.set_name(report.name);
  wire.set_path(report.path);
  wire.set_architecture(report.architecture);
  wire.set_dtype(report.dtype);
  wire.set_kv_dtype(report.kv_dtype);
  wire.set_vocab_size(report.vocab_size);
  wire.set_layers(report.n_layers);
  wire.set_hidden_size(report.hidden_size);
  wire.set_max_positions(report.max_positions);
  wire.set_parameters(report.parameters);
  wire.set_weight_bytes(report.weight_bytes);
  wire.set_kv_bytes(report.kv_bytes);
  wire.set_kv_pages_total(report.kv_pages_total);
  wire.set_kv_pages_free(report.kv_pages_free);
  wire.set_page_tokens(report.page_tokens);
  wire.set_role(report.is_draft ? v1::MODEL_ROLE_DRAFT : v1::MODEL_ROLE_TARGET);
  wire.set_state(report.refused.ok() ? v1::MODEL_STATE_LOADED : v1::MODEL_STATE_REFUSED);
  if (!report.refused.ok()) wire.set_reason(report.refused.to_string());
  wire.set_kv_pages_held(report.kv_pages_held);
  wire.set_forwards(report.forwards);
  wire.set_rows(report.rows);
  wire.set_forward_ns(report.forward_ns);
  wire.set_kv_pages_cached(report.kv_pages_cached);
  wire.set_prefix_query_tokens(report.prefix_query_tokens);
  wire.set_prefix_hit_tokens(report.prefix_hit_tokens);
  if (!report.is_draft) {
    *wire.mutable_default_sampling() = sampling_to_wire(report.sampling_defaults);
    for (const std::string& each : report.generation_config_ignored)
      wire.add_generation_config_ignored(each);
    wire.mutable_eos_tokens()->Add(report.eos_tokens.begin(), report.eos_tokens.end());
  }
  wire.set_chat_template(report.chat_template);
  wire.set_weight_format(report.weight_format);
  wire.set_weight_bits(report.weight_bits);
  return wire;
}

v1::GetStatusResponse status_report_to_wire(const EngineReport& report,
                                            const std::vector<MemoryLine>& memory) {
  v1::GetStatusResponse wire;
  wire.set_version(kVersion);
  wire.set_pid(getpid());
  wire.set_state(enum_value<v1::EngineState>(engine_state_name(report.state)));
  wire.set_device(report.device);
  wire.set_isa(report.isa);
  wire.set_threads(report.threads);
  wire.set_running(report.running);
  wire.set_waiting(report.waiting);
  wire.set_admitted(report.admitted);
  wire.set_completed(report.completed);
  wire.set_failed(report.failed);
  wire.set_cancelled(report.cancelled);
  wire.set_refused(report.refused);
  wire.set_deadline_misses(report.deadline_misses);
  wire.set_preemptions(report.preemptions);
  wire.set_steps(report.steps);
  wire.set_rows(report.rows);
  wire.set_tokens(report.tokens);
  wire.set_kv_moves(report.kv_moves);
  wire.set_uptime_s(static_cast<double>(report.uptime_ns) / 1e9);
  for (const MemoryLine& line : memory) {
    v1::MemoryLine& out = *wire.add_memory();
    out.set_what(line.what);
    out.set_bytes(std::accumulate(line.held.begin(), line.held.end(), uint64_t{0}));
  }
  for (const ThreadReport& each : thread_reports()) {
    if (each.busy_ns == 0) continue;
    v1::ThreadStatus& out = *wire.add_busy_threads();
    out.set_thread(each.thread);
    out.set_work(each.work);
    out.set_busy_s(static_cast<double>(each.busy_ns) / 1e9);
    out.set_is_stuck(each.is_stuck());
  }
  return wire;
}

v1::GetMemoryResponse memory_to_wire(const std::vector<MemoryLine>& memory) {
  v1::GetMemoryResponse wire;
  for (const MemoryLine& line : memory) {
    v1::GetMemoryResponse::Line& out = *wire.add_lines();
    out.set_what(line.what);
    out.mutable_held_bytes()->Add(line.held.begin(), line.held.end());
    out.mutable_planned_bytes()->Add(line.planned.begin(), line.planned.end());
    out.set_detail(line.detail);
  }
  return wire;
}

}  // namespace specd::host
