// specd.v1.Control behind its gates (gates.h): reports, events, and changes of routes one after another on a
// thread of their own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include "core/engine.h"
#include "host/base/task_queue.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/rpc/caller.h"
#include "host/rpc/daemon_actions.h"
#include "host/rpc/event_streams.h"

namespace specd::host {

class ControlService {
 public:
  static constexpr size_t kChangesMax = 64;  // waiting

  // `engine` outlives it; `options` are the engine's.
  ControlService(Engine& engine, const EngineOptions& options, DaemonActions actions)
      : engine_(engine), options_(options), actions_(std::move(actions)), events_(engine) {}

  // Ends the calls of WatchEvents, and waits for that.
  void end_streams(std::chrono::milliseconds limit) {
    events_.end();
    (void)events_.wait_closed(limit);
  }

  grpc::ServerUnaryReactor* ApplyRoute(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::ApplyRouteRequest* request,
                                       v1::ApplyRouteResponse* response);
  grpc::ServerUnaryReactor* DeleteRoute(Caller& caller, grpc::CallbackServerContext* context,
                                        const v1::DeleteRouteRequest* request,
                                        v1::DeleteRouteResponse* response);
  grpc::ServerUnaryReactor* StageRoute(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::StageRouteRequest* request,
                                       v1::StageRouteResponse* response);
  grpc::ServerUnaryReactor* SetTraffic(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::SetTrafficRequest* request,
                                       v1::SetTrafficResponse* response);
  grpc::ServerUnaryReactor* PromoteRoute(Caller& caller, grpc::CallbackServerContext* context,
                                         const v1::PromoteRouteRequest* request,
                                         v1::PromoteRouteResponse* response);
  grpc::ServerUnaryReactor* AbortRoute(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::AbortRouteRequest* request,
                                       v1::AbortRouteResponse* response);
  grpc::ServerUnaryReactor* RollbackRoute(Caller& caller, grpc::CallbackServerContext* context,
                                          const v1::RollbackRouteRequest* request,
                                          v1::RollbackRouteResponse* response);
  grpc::ServerUnaryReactor* GetRoute(Caller&, grpc::CallbackServerContext* context,
                                     const v1::GetRouteRequest* request,
                                     v1::GetRouteResponse* response);
  grpc::ServerUnaryReactor* ListPlugins(Caller&, grpc::CallbackServerContext* context,
                                        const v1::ListPluginsRequest* request,
                                        v1::ListPluginsResponse* response);
  grpc::ServerUnaryReactor* ListRoutes(Caller&, grpc::CallbackServerContext* context,
                                       const v1::ListRoutesRequest* request,
                                       v1::ListRoutesResponse* response);
  grpc::ServerUnaryReactor* ListModels(Caller&, grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response);
  grpc::ServerUnaryReactor* GetStatus(Caller&, grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response);
  grpc::ServerUnaryReactor* GetMemory(Caller&, grpc::CallbackServerContext* context,
                                      const v1::GetMemoryRequest* request,
                                      v1::GetMemoryResponse* response);
  grpc::ServerUnaryReactor* ListRequests(Caller&, grpc::CallbackServerContext* context,
                                         const v1::ListRequestsRequest* request,
                                         v1::ListRequestsResponse* response);
  grpc::ServerUnaryReactor* LoadPlugin(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::LoadPluginRequest* request,
                                       v1::LoadPluginResponse* response);
  grpc::ServerUnaryReactor* RetirePlugin(Caller& caller, grpc::CallbackServerContext* context,
                                         const v1::RetirePluginRequest* request,
                                         v1::RetirePluginResponse* response);
  grpc::ServerUnaryReactor* ReloadConfig(Caller& caller, grpc::CallbackServerContext* context,
                                         const v1::ReloadConfigRequest* request,
                                         v1::ReloadConfigResponse* response);
  grpc::ServerUnaryReactor* Drain(Caller& caller, grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainResponse* response);
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* WatchEvents(
      Caller&, grpc::CallbackServerContext* context, const v1::WatchEventsRequest* request);

 private:
  // Queues a change, and logs what became of it. It blocks until a step ends, so it must not run on
  // gRPC's threads.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* change(const Caller& caller, const char* name, const Request& request,
                                   const Response& response, grpc::CallbackServerContext* context,
                                   std::function<Status()> run);
  static grpc::ServerUnaryReactor* queue(TaskQueue& tasks, grpc::CallbackServerContext* context,
                                         std::function<Status()> run);
  // Of a route by its name. `call`: the member of Engine.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* change_named(const Caller& caller, const char* name,
                                         grpc::CallbackServerContext* context,
                                         const Request* request, Response* response,
                                         Result<RouteChange> (Engine::*call)(const std::string&,
                                                                             const ChangeOptions&));
  // ApplyRoute and StageRoute.
  template <typename Request, typename Response>
  Status add(const Request& request, Response& response,
             Result<RouteChange> (Engine::*call)(const RouteOptions&, const ChangeOptions&));
  Status get(const v1::GetRouteRequest& request, v1::GetRouteResponse& response);

  Engine& engine_;
  const EngineOptions options_;
  const DaemonActions actions_;
  TaskQueue changes_{1, kChangesMax};
  TaskQueue lists_{1, kChangesMax};  // which wait for steps, but not for changes
  EventStreams events_;
};

}  // namespace specd::host
