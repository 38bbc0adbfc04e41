#include "host/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "host/base/unix_socket.h"
#include "host/rpc/control_service.h"
#include "host/rpc/inference_service.h"
#include "host/rpc/listener.h"
#include "host/rpc/calls.h"
#include "host/serve/sessions.h"

namespace specd::host {
namespace {

constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;  // per connection
constexpr std::chrono::milliseconds kGoodbye{100};
constexpr size_t kQuotaBytes = size_t{512} << 20;
constexpr size_t kConnectionsMin = 16, kConnectionsMax = 1024;
constexpr size_t kOtherDescriptors = 200;  // files, HTTP, devices
constexpr std::chrono::seconds kAnswerLimit{10};
constexpr int kIdleMs = 300'000;  // then a connection without calls is closed

// gRPC writes its own log to standard error, which blocks when nobody reads it.
void log_of_grpc(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : line->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  log(level, std::string("gRPC: ") + line->message);
}

Listener::Limits connection_limits() {
  rlimit descriptors{};
  size_t n = kConnectionsMax;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur != RLIM_INFINITY) {
    const auto limit = static_cast<size_t>(descriptors.rlim_cur);
    const size_t left = limit - std::min(limit, kOtherDescriptors);
    n = std::clamp(left / Listener::kDescriptorsPerConnection, kConnectionsMin, kConnectionsMax);
  }
  return {n, n / 2};
}

// A server whose threads or descriptors are short may start and never answer.
Status check_answers(const std::string& socket_path) {
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel(socket_uri(socket_path), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerLimit);
  v1::GetStatusResponse response;
  const grpc::Status status = stub->GetStatus(&context, {}, &response);
  if (status.ok()) return Status();
  return Status(Code::kUnavailable,
                "the server does not answer a call of its own: " + status.error_message() +
                    "; are threads (ulimit -u, pids.max) or descriptors (ulimit -n) short?");
}

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const EngineOptions& options, DaemonActions actions)
      : sessions(engine, options.default_route),
        inference(engine, sessions),
        control(engine, options, std::move(actions)) {}

  Sessions sessions;
  InferenceService inference;
  ControlService control;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Listener> listener;  // of the server
};

GrpcServer::GrpcServer() = default;

GrpcServer::~GrpcServer() {
  if (impl_ != nullptr && impl_->listener != nullptr && impl_->server != nullptr)
    shutdown(std::chrono::milliseconds(0));
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(Engine& engine,
                                                      const std::string& socket_path,
                                                      const EngineOptions& options,
                                                      DaemonActions actions) {
  gpr_set_log_function(log_of_grpc);
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->impl_ = std::make_unique<Impl>(engine, options, std::move(actions));
  Impl& impl = *result->impl_;

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.RegisterService(&impl.inference);
  builder.RegisterService(&impl.control);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  // gRPC would inflate a message before it looks at the size: 4 MB may hold 4 GB.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetResourceQuota(grpc::ResourceQuota("specd").Resize(kQuotaBytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);

  impl.server = builder.BuildAndStart();
  if (impl.server == nullptr) return Status(Code::kUnavailable, "gRPC's server does not start");
  SPECD_TRY(impl.listener, Listener::start(socket_path, connection_limits(),
                                           [server = impl.server.get()](int connection) {
                                             grpc::AddInsecureChannelFromFd(server, connection);
                                           }));
  grpc::HealthCheckServiceInterface* health = impl.server->GetHealthCheckService();
  health->SetServingStatus("specd.v1.Inference", true);
  health->SetServingStatus("specd.v1.Control", true);
  SPECD_OK_OR_RETURN(check_answers(socket_path));
  return result;
}

Status GrpcServer::door() const { return impl_->listener->status(); }

void GrpcServer::start_drain() {
  impl_->server->GetHealthCheckService()->SetServingStatus(false);
  impl_->sessions.start_drain();
}

bool GrpcServer::wait_prompts(std::chrono::milliseconds timeout) {
  return impl_->sessions.wait_prompts(timeout);
}

void GrpcServer::abort_streams(const Status& reason) { impl_->sessions.abort_all(reason); }

void GrpcServer::shutdown(std::chrono::milliseconds flush) {
  // Wait here instead of in Shutdown(), which also waits for idle clients to read their GOAWAY.
  const auto end = std::chrono::steady_clock::now() + flush;
  impl_->sessions.wait_closed(flush);
  impl_->control.end_streams(kGoodbye);
  impl_->listener->stop_accepting();
  impl_->server->Shutdown(std::chrono::system_clock::now() + kGoodbye);
  impl_->server->Wait();
  impl_->server.reset();
  impl_->listener->finish(std::max(kGoodbye, std::chrono::duration_cast<std::chrono::milliseconds>(
                                                 end - std::chrono::steady_clock::now())));
}

}  // namespace specd::host
