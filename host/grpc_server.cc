#include "host/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "host/generate_stream.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/unix_socket.h"
#include "host/wire.h"

namespace specd::host {
namespace {

constexpr int kMessageBytesMax = 4 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;  // per connection
constexpr std::chrono::milliseconds kGoodbye{100};
constexpr size_t kQuotaBytes = size_t{512} << 20;

// Ends a stream that never started.
class RefusedStream : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(Engine& engine, StreamPump& pump, std::string default_route)
      : engine_(engine), pump_(pump), default_route_(std::move(default_route)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* wire) override {
    Result<Request> request = request_from_wire(*wire);
    if (!request.ok()) return new RefusedStream(status_to_wire(request.status()));
    heed_deadline_of_call(*context, request.value());
    const std::string& route = request.value().route;
    return GenerateStream::start(engine_, pump_, request.value(),
                                 route.empty() ? default_route_ : route,
                                 wire->return_prompt_token_ids());
  }
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override {
    response->set_found(engine_.cancel(request->request_id()));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  // The engine need not work longer than the client waits.
  static void heed_deadline_of_call(const grpc::CallbackServerContext& context, Request& request) {
    if (context.deadline() == std::chrono::system_clock::time_point::max()) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        context.deadline() - std::chrono::system_clock::now());
    const int64_t left_ms = std::max<int64_t>(left.count(), 1);
    if (left_ms > EngineLimits::kDeadlineMs) return;
    if (request.deadline_ms == 0 || left_ms < request.deadline_ms) request.deadline_ms = left_ms;
  }

  Engine& engine_;
  StreamPump& pump_;
  std::string default_route_;
};

class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(Engine& engine) : engine_(engine) {}

  grpc::ServerUnaryReactor* ListPlugins(grpc::CallbackServerContext* context,
                                        const v1::ListPluginsRequest*,
                                        v1::ListPluginsResponse* response) override {
    for (const PluginReport& report : engine_.plugins())
      *response->add_plugins() = plugin_to_wire(report);
    return done(context);
  }
  grpc::ServerUnaryReactor* ListRoutes(grpc::CallbackServerContext* context,
                                       const v1::ListRoutesRequest*,
                                       v1::ListRoutesResponse* response) override {
    for (const RouteReport& report : engine_.routes())
      *response->add_routes() = route_to_wire(report);
    return done(context);
  }
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    *response->add_models() = model_to_wire(engine_.model());
    for (const ModelReport& report : engine_.draft_models())
      *response->add_models() = model_to_wire(report);
    return done(context);
  }
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    *response = status_report_to_wire(engine_.status(), engine_.memory());
    return done(context);
  }

 private:
  static grpc::ServerUnaryReactor* done(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  Engine& engine_;
};

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const std::string& default_route)
      : inference(engine, pump, default_route), control(engine) {}

  StreamPump pump;
  InferenceService inference;
  ControlService control;
  std::unique_ptr<grpc::Server> server;
};

GrpcServer::GrpcServer() = default;

GrpcServer::~GrpcServer() {
  if (impl_ != nullptr && impl_->server != nullptr) shutdown(std::chrono::milliseconds(0));
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(Engine& engine,
                                                      const std::string& socket_path,
                                                      const std::string& default_route) {
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->impl_ = std::make_unique<Impl>(engine, default_route);
  Impl& impl = *result->impl_;

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(socket_uri(socket_path), grpc::InsecureServerCredentials());
  builder.RegisterService(&impl.inference);
  builder.RegisterService(&impl.control);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("specd").Resize(kQuotaBytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);

  // The socket must never be open to others, not even between bind and chmod.
  const mode_t old_mask = umask(0177);
  impl.server = builder.BuildAndStart();
  umask(old_mask);
  if (impl.server == nullptr)
    return Status(Code::kFailedPrecondition,
                  "cannot listen on " + socket_path + "; is its folder writable for this user?");
  if (chmod(socket_path.c_str(), 0600) != 0)
    return Status(Code::kFailedPrecondition,
                  "cannot set the mode of " + socket_path + ": " + std::strerror(errno));
  grpc::HealthCheckServiceInterface* health = impl.server->GetHealthCheckService();
  health->SetServingStatus("specd.v1.Inference", true);
  health->SetServingStatus("specd.v1.Control", true);
  return result;
}

void GrpcServer::set_not_serving() {
  impl_->server->GetHealthCheckService()->SetServingStatus(false);
}

void GrpcServer::abort_streams(const Status& reason) { impl_->pump.abort_all(reason); }

void GrpcServer::shutdown(std::chrono::milliseconds flush) {
  // Not by Shutdown()'s own deadline: it also waits for idle clients to read their goodbye.
  impl_->pump.wait_empty(flush);
  impl_->server->Shutdown(std::chrono::system_clock::now() + kGoodbye);
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace specd::host
