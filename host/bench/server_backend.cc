#include "host/bench/server_backend.h"

#include "core/base/clock.h"

namespace specd::host {
namespace {

uint64_t ns(double ms) { return static_cast<uint64_t>(ms * 1e6); }

Guarantee guarantee_of(const v1::Route& route) {
  switch (route.guarantee()) {
    case v1::GUARANTEE_NONE:
      return Guarantee::kNone;
    case v1::GUARANTEE_LAW:
      return Guarantee::kLaw;
    default:
      return Guarantee::kIdentical;
  }
}

v1::GenerateRequest to_wire(const Request& request) {
  v1::GenerateRequest wire;
  if (request.prompt_tokens.has_value())
    wire.mutable_token_ids()->mutable_ids()->Add(request.prompt_tokens->begin(),
                                                 request.prompt_tokens->end());
  else
    wire.set_text(request.prompt);
  if (request.sampling.temperature)
    wire.mutable_sampling()->set_temperature(*request.sampling.temperature);
  if (request.sampling.top_p) wire.mutable_sampling()->set_top_p(*request.sampling.top_p);
  if (request.sampling.top_k) wire.mutable_sampling()->set_top_k(*request.sampling.top_k);
  if (request.sampling.seed) wire.mutable_sampling()->set_seed(*request.sampling.seed);
  if (request.sampling.min_p) wire.mutable_sampling()->set_min_p(*request.sampling.min_p);
  if (request.sampling.typical_p)
    wire.mutable_sampling()->set_typical_p(*request.sampling.typical_p);
  if (request.sampling.repetition_penalty)
    wire.mutable_sampling()->set_repetition_penalty(*request.sampling.repetition_penalty);
  if (request.sampling.frequency_penalty)
    wire.mutable_sampling()->set_frequency_penalty(*request.sampling.frequency_penalty);
  if (request.sampling.presence_penalty)
    wire.mutable_sampling()->set_presence_penalty(*request.sampling.presence_penalty);
  wire.set_max_tokens(request.max_tokens);
  wire.set_ignore_eos(request.ignore_eos);
  wire.set_route(request.route);
  wire.set_cache_salt(request.cache_salt);
  return wire;
}

}  // namespace

Result<Answer> ServerBackend::run(const Request& request, bool with_prompt_tokens,
                                  const std::atomic<bool>& stop) {
  v1::GenerateRequest wire = to_wire(request);
  wire.set_return_prompt_token_ids(with_prompt_tokens);
  Answer answer;
  answer.start_ns = now_ns();
  SPECD_TRY(Generation got, client_.generate(
                                wire,
                                [&](const v1::GenerateResponse& message) {
                                  if (answer.first_ns == 0 && message.has_chunk() &&
                                      message.chunk().token_ids_size() > 0)
                                    answer.first_ns = now_ns();
                                },
                                &stop));
  answer.end_ns = now_ns();
  if (answer.first_ns == 0) answer.first_ns = answer.end_ns;
  answer.tokens = std::move(got.token_ids);
  const auto& prompt = got.started.prompt_token_ids();
  answer.prompt_tokens.assign(prompt.begin(), prompt.end());
  const v1::Finished& end = got.finished;
  const v1::Speculation& speculation = end.speculation();
  answer.usage = {.prompt_tokens = end.usage().prompt_tokens(),
                  .completion_tokens = end.usage().completion_tokens(),
                  .cached_prompt_tokens = end.usage().cached_prompt_tokens(),
                  .preemptions = end.usage().preemptions(),
                  .steps = speculation.decode_steps(),
                  .draft_tokens = speculation.total_draft_tokens(),
                  .accepted_tokens = speculation.total_accepted_draft_tokens(),
                  .rejected_tokens = speculation.total_rejected_draft_tokens(),
                  .discarded_tokens = speculation.total_discarded_draft_tokens(),
                  .queue_ns = ns(end.times().queue_ms()),
                  .prefill_ns = ns(end.times().prefill_ms()),
                  .decode_ns = ns(end.times().decode_ms())};
  return answer;
}

Result<ModelReport> ServerBackend::model() {
  SPECD_TRY(const v1::ListModelsResponse response, client_.models());
  if (response.models().empty()) return Status(Code::kInternal, "the daemon names no model");
  const v1::Model& model = response.models(0);
  ModelReport report;
  report.name = model.name();
  report.path = model.path();
  report.architecture = model.architecture();
  report.vocab_size = model.vocab_size();
  report.max_positions = model.max_positions();
  report.weight_bytes = model.weight_bytes();
  return report;
}

Result<DraftCounts> ServerBackend::draft_counts(const std::string& route) {
  SPECD_TRY(const v1::ListRoutesResponse response, client_.routes());
  for (const v1::Route& each : response.routes())
    if (each.name() == route)
      return DraftCounts{guarantee_of(each),
                         each.drafts(),
                         {each.accepted_at().begin(), each.accepted_at().end()},
                         each.propose_ns()};
  return Status(Code::kNotFound, "no route is called '" + route + "'");
}

}  // namespace specd::host
