// Converts between the engine's types and the wire's: requests in; events, reports, statuses out.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "core/engine.h"
#include "host/proto/specd.pb.h"

namespace specd::host {

// Checks what the wire adds (no prompt at all, more memory than a request can need); the engine
// checks the values.
Result<Request> request_from_wire(const v1::GenerateRequest& wire);
// An error of the engine about a request, with the field named as in the .proto.
Status with_wire_field(const Status& status);

// "field: message", at most 2 KiB of it.
grpc::Status status_to_wire(const Status& status);

// Strings of reports may contain any bytes; call make_utf8() on the whole reply.
v1::Sampling sampling_to_wire(const SamplingParams& sampling);
v1::Logprobs logprobs_to_wire(const Logprobs& logprobs);
v1::FinishReason finish_reason_to_wire(FinishReason reason);
v1::Finished finished_to_wire(const std::string& request_id, FinishReason reason,
                              const Usage& usage);
v1::Plugin plugin_to_wire(const PluginReport& report);
v1::Event event_to_wire(const EngineEvent& event);
v1::ListRequestsResponse requests_to_wire(const RequestList& list);
v1::RouteEffect effect_to_wire(const RouteChange& change);
Result<RunningRequests> running_from_wire(v1::RunningRequests running);
// Of any request that changes a route.
template <typename Request>
Result<ChangeOptions> change_options_from_wire(const Request& request) {
  ChangeOptions how{.request_id = request.request_id(), .dry_run = request.dry_run()};
  if constexpr (requires { request.generation(); }) how.generation = request.generation();
  if constexpr (requires { request.running(); }) {
    SPECD_TRY(how.running, running_from_wire(request.running()));
  }
  return how;
}
v1::Route route_to_wire(const RouteReport& report);
v1::Model model_to_wire(const ModelReport& report);
v1::GetStatusResponse status_report_to_wire(const EngineReport& report,
                                            const std::vector<MemoryLine>& memory);
v1::GetMemoryResponse memory_to_wire(const std::vector<MemoryLine>& memory);

}  // namespace specd::host
