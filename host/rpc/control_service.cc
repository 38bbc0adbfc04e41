#include "host/rpc/control_service.h"

#include <string>
#include <utility>

#include "core/base/quote.h"
#include "host/base/out_of_memory.h"
#include "host/config/config.h"
#include "host/rpc/calls.h"
#include "host/rpc/wire.h"

namespace specd::host {
namespace {

constexpr size_t kSourceBytesMax = 400;
constexpr int32_t kListedRequests = 1000, kListedRequestsMax = 10'000;  // a message has 4 MiB

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* ControlService::change(const Caller& caller, const char* name,
                                                 const Request& request, const Response& response,
                                                 grpc::CallbackServerContext* context,
                                                 std::function<Status()> run) {
  std::string what;
  if constexpr (requires { request.name(); }) what += " " + quote(request.name(), 60);
  if constexpr (requires { request.plugin(); }) what += " " + quote(request.plugin(), 60);
  if constexpr (requires { request.dry_run(); }) what += request.dry_run() ? ", dry run" : "";
  if (!request.request_id().empty()) what += ", request " + quote(request.request_id(), 60);
  what += ", by " + caller.name();
  const auto audited = [name, &response, what = std::move(what), run = std::move(run)]() -> Status {
    Status done = within_memory(run);
    std::string route;  // of a definition, once it was read
    (void)response;     // most have no name
    if constexpr (requires { response.name(); }) route = " " + quote(response.name(), 60);
    log(done.ok() ? LogLevel::kInfo : LogLevel::kWarn, "control: " + std::string(name) + route +
                                                           what + ": " +
                                                           (done.ok() ? "done" : done.to_string()));
    return done;
  };
  return queue(changes_, context, audited);
}

template <typename Request, typename Response>
Status ControlService::add(const Request& request, Response& response,
                           Result<RouteChange> (Engine::*call)(const RouteOptions&,
                                                               const ChangeOptions&)) {
  if (request.source().size() > kSourceBytesMax)
    return Status(Code::kInvalidArgument, "source",
                  "expected at most " + std::to_string(kSourceBytesMax) + " bytes, found " +
                      std::to_string(request.source().size()));
  std::string source = request.source().empty() ? "definition" : request.source();
  for (char& c : source)
    if (c < ' ' || c > '~') c = '?';
  SPECD_TRY(const ChangeOptions how, change_options_from_wire(request));
  SPECD_TRY(const RouteFile file, parse_route(request.definition(), source, options_));
  response.set_name(file.route.name);
  const auto done = (engine_.*call)(file.route, how);
  if (!done.ok()) return with_place(file, done.status());
  response.set_generation(done.value().generation);
  response.set_unchanged(done.value().unchanged);
  *response.mutable_effect() = effect_to_wire(done.value());
  return Status();
}

grpc::ServerUnaryReactor* ControlService::ApplyRoute(Caller& caller,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::ApplyRouteRequest* request,
                                                     v1::ApplyRouteResponse* response) {
  return change(caller, "ApplyRoute", *request, *response, context, [this, request, response] {
    return add(*request, *response, &Engine::apply_route);
  });
}

grpc::ServerUnaryReactor* ControlService::StageRoute(Caller& caller,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::StageRouteRequest* request,
                                                     v1::StageRouteResponse* response) {
  return change(caller, "StageRoute", *request, *response, context, [this, request, response] {
    return add(*request, *response, &Engine::stage_route);
  });
}

grpc::ServerUnaryReactor* ControlService::SetTraffic(Caller& caller,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::SetTrafficRequest* request,
                                                     v1::SetTrafficResponse* response) {
  return change(
      caller, "SetTraffic", *request, *response, context, [this, request, response]() -> Status {
        SPECD_TRY(const ChangeOptions how, change_options_from_wire(*request));
        SPECD_TRY(
            const RouteChange done,
            engine_.set_traffic(
                request->name(),
                {.share_percent = request->share_percent(), .is_shadow = request->shadow()}, how));
        response->set_generation(done.generation);
        response->set_unchanged(done.unchanged);
        *response->mutable_effect() = effect_to_wire(done);
        return Status();
      });
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* ControlService::change_named(
    const Caller& caller, const char* name, grpc::CallbackServerContext* context,
    const Request* request, Response* response,
    Result<RouteChange> (Engine::*call)(const std::string&, const ChangeOptions&)) {
  return change(caller, name, *request, *response, context,
                [this, request, response, call]() -> Status {
                  SPECD_TRY(const ChangeOptions how, change_options_from_wire(*request));
                  SPECD_TRY(const RouteChange done, (engine_.*call)(request->name(), how));
                  response->set_generation(done.generation);
                  *response->mutable_effect() = effect_to_wire(done);
                  return Status();
                });
}

grpc::ServerUnaryReactor* ControlService::DeleteRoute(Caller& caller,
                                                      grpc::CallbackServerContext* context,
                                                      const v1::DeleteRouteRequest* request,
                                                      v1::DeleteRouteResponse* response) {
  return change_named(caller, "DeleteRoute", context, request, response, &Engine::delete_route);
}
grpc::ServerUnaryReactor* ControlService::PromoteRoute(Caller& caller,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::PromoteRouteRequest* request,
                                                       v1::PromoteRouteResponse* response) {
  return change_named(caller, "PromoteRoute", context, request, response, &Engine::promote_route);
}
grpc::ServerUnaryReactor* ControlService::AbortRoute(Caller& caller,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::AbortRouteRequest* request,
                                                     v1::AbortRouteResponse* response) {
  return change_named(caller, "AbortRoute", context, request, response, &Engine::abort_route);
}
grpc::ServerUnaryReactor* ControlService::RollbackRoute(Caller& caller,
                                                        grpc::CallbackServerContext* context,
                                                        const v1::RollbackRouteRequest* request,
                                                        v1::RollbackRouteResponse* response) {
  return change_named(caller, "RollbackRoute", context, request, response,
                      &Engine::roll_back_route);
}

grpc::ServerUnaryReactor* ControlService::GetRoute(Caller&, grpc::CallbackServerContext* context,
                                                   const v1::GetRouteRequest* request,
                                                   v1::GetRouteResponse* response) {
  return finished(context, get(*request, *response), response);
}

grpc::ServerUnaryReactor* ControlService::ListPlugins(Caller&, grpc::CallbackServerContext* context,
                                                      const v1::ListPluginsRequest*,
                                                      v1::ListPluginsResponse* response) {
  for (const PluginReport& report : engine_.plugins())
    *response->add_plugins() = plugin_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::ListRoutes(Caller&, grpc::CallbackServerContext* context,
                                                     const v1::ListRoutesRequest*,
                                                     v1::ListRoutesResponse* response) {
  for (const RouteReport& report : engine_.routes())
    *response->add_routes() = route_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::ListModels(Caller&, grpc::CallbackServerContext* context,
                                                     const v1::ListModelsRequest*,
                                                     v1::ListModelsResponse* response) {
  *response->add_models() = model_to_wire(engine_.model());
  for (const ModelReport& report : engine_.draft_models())
    *response->add_models() = model_to_wire(report);
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::GetStatus(Caller&, grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest*,
                                                    v1::GetStatusResponse* response) {
  *response = status_report_to_wire(engine_.status(), engine_.memory());
  return finished(context, Status(), response);
}

grpc::ServerUnaryReactor* ControlService::GetMemory(Caller&, grpc::CallbackServerContext* context,
                                                    const v1::GetMemoryRequest*,
                                                    v1::GetMemoryResponse* response) {
  *response = memory_to_wire(engine_.memory());
  return finished(context, Status(), response);
}

grpc::ServerWriteReactor<v1::WatchEventsResponse>* ControlService::WatchEvents(
    Caller&, grpc::CallbackServerContext*, const v1::WatchEventsRequest* request) {
  return events_.open(*request);
}

grpc::ServerUnaryReactor* ControlService::ListRequests(Caller&,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::ListRequestsRequest* request,
                                                       v1::ListRequestsResponse* response) {
  return queue(lists_, context, [this, request, response]() -> Status {
    const int32_t wanted = request->max() == 0 ? kListedRequests : request->max();
    if (wanted < 0 || wanted > kListedRequestsMax)
      return Status(Code::kInvalidArgument, "max",
                    "expected 0 to " + std::to_string(kListedRequestsMax) + ", found " +
                        std::to_string(wanted));
    SPECD_TRY(const RequestList list, engine_.requests(static_cast<size_t>(wanted)));
    *response = requests_to_wire(list);
    make_utf8(*response);
    return Status();
  });
}

grpc::ServerUnaryReactor* ControlService::LoadPlugin(Caller& caller,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::LoadPluginRequest* request,
                                                     v1::LoadPluginResponse* response) {
  return change(caller, "LoadPlugin", *request, *response, context,
                [this, request, response]() -> Status {
                  SPECD_TRY(const PluginReport loaded,
                            engine_.load_plugin(request->plugin(), request->request_id()));
                  *response->mutable_plugin() = plugin_to_wire(loaded);
                  make_utf8(*response);
                  return Status();
                });
}

grpc::ServerUnaryReactor* ControlService::RetirePlugin(Caller& caller,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::RetirePluginRequest* request,
                                                       v1::RetirePluginResponse* response) {
  return change(caller, "RetirePlugin", *request, *response, context, [this, request] {
    return engine_.retire_plugin(request->plugin(), request->request_id());
  });
}

grpc::ServerUnaryReactor* ControlService::ReloadConfig(Caller& caller,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::ReloadConfigRequest* request,
                                                       v1::ReloadConfigResponse* response) {
  return change(
      caller, "ReloadConfig", *request, *response, context, [this, request, response]() -> Status {
        SPECD_TRY(const Reloaded done, actions_.reload({.request_id = request->request_id(),
                                                        .dry_run = request->dry_run()}));
        response->mutable_added()->Add(done.routes.added.begin(), done.routes.added.end());
        response->mutable_changed()->Add(done.routes.changed.begin(), done.routes.changed.end());
        response->mutable_removed()->Add(done.routes.removed.begin(), done.routes.removed.end());
        response->mutable_settings()->Add(done.settings.begin(), done.settings.end());
        return Status();
      });
}

grpc::ServerUnaryReactor* ControlService::Drain(Caller& caller,
                                                grpc::CallbackServerContext* context,
                                                const v1::DrainRequest*, v1::DrainResponse*) {
  log(LogLevel::kInfo, "control: Drain, by " + caller.name() + ": done");
  actions_.drain();
  return finished(context, Status());
}

grpc::ServerUnaryReactor* ControlService::queue(TaskQueue& tasks,
                                                grpc::CallbackServerContext* context,
                                                std::function<Status()> run) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!tasks.post(
          [reactor, run = std::move(run)] { reactor->Finish(status_to_wire(within_memory(run))); }))
    reactor->Finish(status_to_wire(
        Status(Code::kExhausted, std::to_string(kChangesMax) + " calls of this kind wait")));
  return reactor;
}

Status ControlService::get(const v1::GetRouteRequest& request, v1::GetRouteResponse& response) {
  SPECD_TRY(const RouteOptions route, engine_.route(request.name()));
  response.set_definition(route_to_json(route).dump());
  for (const RouteReport& report : engine_.routes()) {
    if (report.name() != route.name) continue;
    *response.mutable_route() = route_to_wire(report);  // live or refused, else the candidate
    break;
  }
  return Status();
}

}  // namespace specd::host
