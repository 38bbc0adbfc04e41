#include "host/rpc/control_service.h"

#include <string>
#include <utility>

#include "host/base/out_of_memory.h"
#include "host/config/config.h"
#include "host/rpc/unary.h"
#include "host/rpc/wire.h"

namespace specd::host {
namespace {

constexpr size_t kSourceBytesMax = 400;

}  // namespace

grpc::ServerUnaryReactor* ControlService::ApplyRoute(grpc::CallbackServerContext* context,
                                                     const v1::ApplyRouteRequest* request,
                                                     v1::ApplyRouteResponse* response) {
  return change(context, [this, request, response] { return apply(*request, *response); });
}

grpc::ServerUnaryReactor* ControlService::DeleteRoute(grpc::CallbackServerContext* context,
                                                      const v1::DeleteRouteRequest* request,
                                                      v1::DeleteRouteResponse* response) {
  return change(context, [this, request, response]() -> Status {
    SPECD_TRY(const RouteChange done, engine_.delete_route(request->name(), request->request_id()));
    response->set_generation(done.generation);
    return Status();
  });
}

grpc::ServerUnaryReactor* ControlService::GetRoute(grpc::CallbackServerContext* context,
                                                   const v1::GetRouteRequest* request,
                                                   v1::GetRouteResponse* response) {
  return finished(context, get(*request, *response), response);
}

grpc::ServerUnaryReactor* ControlService::ListPlugins(grpc::CallbackServerContext* context,
                                                      const v1::ListPluginsRequest*,
                                                      v1::ListPluginsResponse* response) {
  for (const PluginReport& report : engine_.plugins())
    *response->add_plugins() = plugin_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::ListRoutes(grpc::CallbackServerContext* context,
                                                     const v1::ListRoutesRequest*,
                                                     v1::ListRoutesResponse* response) {
  for (const RouteReport& report : engine_.routes())
    *response->add_routes() = route_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::ListModels(grpc::CallbackServerContext* context,
                                                     const v1::ListModelsRequest*,
                                                     v1::ListModelsResponse* response) {
  *response->add_models() = model_to_wire(engine_.model());
  for (const ModelReport& report : engine_.draft_models())
    *response->add_models() = model_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest*,
                                                    v1::GetStatusResponse* response) {
  *response = status_report_to_wire(engine_.status(), engine_.memory());
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::GetMemory(grpc::CallbackServerContext* context,
                                                    const v1::GetMemoryRequest*,
                                                    v1::GetMemoryResponse* response) {
  *response = memory_to_wire(engine_.memory());
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::change(grpc::CallbackServerContext* context,
                                                 std::function<Status()> run) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!changes_.post(
          [reactor, run = std::move(run)] { reactor->Finish(status_to_wire(within_memory(run))); }))
    reactor->Finish(status_to_wire(
        Status(Code::kExhausted, std::to_string(kChangesMax) + " changes of routes wait")));
  return reactor;
}

Status ControlService::apply(const v1::ApplyRouteRequest& request,
                             v1::ApplyRouteResponse& response) {
  if (request.source().size() > kSourceBytesMax)
    return Status(Code::kInvalidArgument, "source",
                  "expected at most " + std::to_string(kSourceBytesMax) + " bytes, found " +
                      std::to_string(request.source().size()));
  std::string source = request.source().empty() ? "definition" : request.source();
  for (char& c : source)
    if (c < ' ' || c > '~') c = '?';
  SPECD_TRY(const RouteFile file, parse_route(request.definition(), source, options_));
  const auto done = engine_.apply_route(file.route, request.request_id());
  if (!done.ok()) return with_place(file, done.status());
  response.set_name(file.route.name);
  response.set_generation(done.value().generation);
  response.set_unchanged(done.value().unchanged);
  return Status();
}

Status ControlService::get(const v1::GetRouteRequest& request, v1::GetRouteResponse& response) {
  SPECD_TRY(const RouteOptions route, engine_.route(request.name()));
  response.set_definition(route_to_json(route).dump());
  for (const RouteReport& report : engine_.routes())
    if (report.name() == route.name && report.state != RouteState::kDraining)
      *response.mutable_route() = route_to_wire(report);
  return Status();
}

}  // namespace specd::host
