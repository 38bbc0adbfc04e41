// Between the engine's words and the wire's: requests in, events, reports and statuses out.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "core/engine.h"
#include "host/proto/specd.pb.h"

namespace specd::host {

// Checks what the wire adds (no prompt at all, an id that cannot be logged); the engine checks the
// values.
Result<Request> request_from_wire(const v1::GenerateRequest& wire);
// Printable ASCII without spaces, at most 128 bytes: what logs and terminals can show.
Status check_name(const std::string& field, const std::string& name);
// The engine's complaint about a request, with the field as the .proto spells it.
Status named_as_on_wire(const Status& status);

grpc::Status status_to_wire(const Status& status);

v1::Sampling sampling_to_wire(const SamplingParams& sampling);
v1::Finished finished_to_wire(const std::string& request_id, const Event& event);
v1::Plugin plugin_to_wire(const PluginReport& report);
v1::Route route_to_wire(const RouteReport& report);
v1::Model model_to_wire(const ModelReport& report);
v1::GetStatusResponse status_report_to_wire(const EngineReport& report,
                                            const std::vector<MemoryLine>& memory);

}  // namespace specd::host
