#include "host/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "core/base/clock.h"
#include "host/config/config.h"
#include "host/serve/generate_stream.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/base/task_queue.h"
#include "host/base/unix_socket.h"
#include "host/rpc/proto_text.h"
#include "host/rpc/wire.h"

namespace specd::host {
namespace {

constexpr int kMessageBytesMax = 4 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;  // per connection
constexpr size_t kPromptThreads = 2;
constexpr size_t kPromptsMax = 256;  // that wait
constexpr std::chrono::milliseconds kGoodbye{100};
constexpr size_t kQuotaBytes = size_t{512} << 20;

// Ends a stream that never started.
class RefusedStream : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Ends a unary call at once.
grpc::ServerUnaryReactor* finished(grpc::CallbackServerContext* context, const Status& status,
                                   google::protobuf::Message* response = nullptr) {
  if (response != nullptr) make_utf8(*response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status_to_wire(status));
  return reactor;
}

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(Engine& engine, StreamPump& pump, std::string default_route)
      : engine_(engine), pump_(pump), default_route_(std::move(default_route)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* wire) override {
    Result<Request> request = request_from_wire(*wire);
    if (!request.ok()) return new RefusedStream(status_to_wire(request.status()));
    const std::shared_ptr<GenerateStream> stream =
        GenerateStream::make(engine_, pump_, request.value().id);
    const bool must_render = !request.value().prompt_tokens.has_value();
    request.value().arrived_ns = now_ns();
    heed_deadline_of_call(context->deadline(), request.value());
    auto begin = [this, stream, sent = std::move(request).value(),
                  return_ids = wire->return_prompt_token_ids()] {
      stream->begin(sent, sent.route.empty() ? default_route_ : sent.route, return_ids);
    };
    if (const Status status = take(std::move(begin), must_render); !status.ok()) {
      engine_.count_refused();
      stream->refuse(status);
    }
    return stream.get();  // gRPC has not seen it yet, so OnDone cannot have run
  }
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override {
    // In this order: a request that is submitted in between is found by the second.
    const bool waited = pump_.cancel_waiting(request->request_id());
    response->set_found(engine_.cancel(request->request_id()) || waited);
    return finished(context, Status());
  }

  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const v1::GenerateRequest* wire,
                                       v1::RenderChatResponse* response) override {
    Result<Request> request = request_from_wire(*wire);
    if (!request.ok()) return finished(context, request.status());
    auto render = [this, asked = std::move(request).value(), response]() -> Status {
      SPECD_TRY(RenderedPrompt made, engine_.render(asked));
      response->mutable_token_ids()->Add(made.tokens.begin(), made.tokens.end());
      response->set_text(std::move(made.text));
      const size_t bytes = response->ByteSizeLong();
      if (bytes <= kMessageBytesMax) return Status();
      response->Clear();
      return Status(Code::kExhausted, "the rendered prompt and its ids take " +
                                          std::to_string(bytes) + " bytes, a reply at most " +
                                          std::to_string(kMessageBytesMax));
    };
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto answer = [context, reactor, render = std::move(render)] {
      reactor->Finish(context->IsCancelled() ? grpc::Status::CANCELLED
                                             : status_to_wire(with_wire_field(render())));
    };
    const Status status = take(std::move(answer), true);
    if (!status.ok()) reactor->Finish(status_to_wire(status));
    return reactor;
  }

  void start_drain() { draining_ = true; }
  bool wait_prompts(std::chrono::milliseconds timeout) { return prompts_.wait_idle(timeout); }

 private:
  // The engine need not work longer than the client waits.
  static void heed_deadline_of_call(std::chrono::system_clock::time_point deadline,
                                    Request& request) {
    if (deadline == std::chrono::system_clock::time_point::max()) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::system_clock::now());
    const int64_t left_ms = std::max<int64_t>(left.count(), 1);
    if (left_ms > EngineLimits::kDeadlineMs) return;
    // What is out of range is refused where it is checked.
    if (request.deadline_ms == 0 ||
        (left_ms < request.deadline_ms && request.deadline_ms <= EngineLimits::kDeadlineMs))
      request.deadline_ms = left_ms;
  }

  // Runs the task: behind those that render, or at once, where it does not.
  Status take(std::function<void()> task, bool must_render) {
    if (draining_) return Status(Code::kUnavailable, "the daemon is shutting down");
    if (!must_render) {
      task();
      return Status();
    }
    if (prompts_.post(std::move(task))) return Status();
    return Status(Code::kExhausted, std::to_string(kPromptsMax) +
                                        " requests wait for their prompts to be rendered; try "
                                        "again");
  }

  Engine& engine_;
  StreamPump& pump_;
  std::string default_route_;
  std::atomic<bool> draining_{false};
  // Templates and tokenizers may take a second for a prompt: gRPC's threads stay free for others.
  TaskQueue prompts_{kPromptThreads, kPromptsMax};
};

constexpr size_t kChangesMax = 64;  // that wait
constexpr size_t kSourceBytesMax = 400;

class ControlService final : public v1::Control::CallbackService {
 public:
  ControlService(Engine& engine, const EngineOptions& options)
      : engine_(engine), options_(options) {}

  grpc::ServerUnaryReactor* ApplyRoute(grpc::CallbackServerContext* context,
                                       const v1::ApplyRouteRequest* request,
                                       v1::ApplyRouteResponse* response) override {
    return change(context, [this, request, response] { return apply(*request, *response); });
  }
  grpc::ServerUnaryReactor* DeleteRoute(grpc::CallbackServerContext* context,
                                        const v1::DeleteRouteRequest* request,
                                        v1::DeleteRouteResponse* response) override {
    return change(context, [this, request, response]() -> Status {
      SPECD_TRY(const RouteChange done,
                engine_.delete_route(request->name(), request->request_id()));
      response->set_generation(done.generation);
      return Status();
    });
  }
  grpc::ServerUnaryReactor* GetRoute(grpc::CallbackServerContext* context,
                                     const v1::GetRouteRequest* request,
                                     v1::GetRouteResponse* response) override {
    return finished(context, get(*request, *response), response);
  }
  grpc::ServerUnaryReactor* ListPlugins(grpc::CallbackServerContext* context,
                                        const v1::ListPluginsRequest*,
                                        v1::ListPluginsResponse* response) override {
    for (const PluginReport& report : engine_.plugins())
      *response->add_plugins() = plugin_to_wire(report);
    return finished(context, Status(), response);
  }
  grpc::ServerUnaryReactor* ListRoutes(grpc::CallbackServerContext* context,
                                       const v1::ListRoutesRequest*,
                                       v1::ListRoutesResponse* response) override {
    for (const RouteReport& report : engine_.routes())
      *response->add_routes() = route_to_wire(report);
    return finished(context, Status(), response);
  }
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    *response->add_models() = model_to_wire(engine_.model());
    for (const ModelReport& report : engine_.draft_models())
      *response->add_models() = model_to_wire(report);
    return finished(context, Status(), response);
  }
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    *response = status_report_to_wire(engine_.status(), engine_.memory());
    return finished(context, Status(), response);
  }

 private:
  grpc::ServerUnaryReactor* change(grpc::CallbackServerContext* context,
                                   std::function<Status()> run) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!changes_.post([reactor, run = std::move(run)] { reactor->Finish(status_to_wire(run())); }))
      reactor->Finish(status_to_wire(
          Status(Code::kExhausted, std::to_string(kChangesMax) + " changes of routes wait")));
    return reactor;
  }

  Status apply(const v1::ApplyRouteRequest& request, v1::ApplyRouteResponse& response) {
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
  Status get(const v1::GetRouteRequest& request, v1::GetRouteResponse& response) {
    SPECD_TRY(const RouteOptions route, engine_.route(request.name()));
    response.set_definition(route_to_json(route).dump());
    for (const RouteReport& report : engine_.routes())
      if (report.name == route.name && report.state != "draining")
        *response.mutable_route() = route_to_wire(report);
    return Status();
  }

  Engine& engine_;
  const EngineOptions options_;
  TaskQueue changes_{1, kChangesMax};  // one after another
};

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const EngineOptions& options)
      : inference(engine, pump, options.default_route), control(engine, options) {}

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
                                                      const EngineOptions& options) {
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->impl_ = std::make_unique<Impl>(engine, options);
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

void GrpcServer::start_drain() {
  impl_->server->GetHealthCheckService()->SetServingStatus(false);
  impl_->inference.start_drain();
}

bool GrpcServer::wait_prompts(std::chrono::milliseconds timeout) {
  return impl_->inference.wait_prompts(timeout);
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
