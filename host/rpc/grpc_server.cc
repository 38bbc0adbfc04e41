#include "host/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "host/base/unix_socket.h"
#include "host/rpc/control_service.h"
#include "host/rpc/inference_service.h"
#include "host/rpc/unary.h"
#include "host/serve/sessions.h"

namespace specd::host {
namespace {

constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;  // per connection
constexpr std::chrono::milliseconds kGoodbye{100};
constexpr size_t kQuotaBytes = size_t{512} << 20;

// gRPC writes its own log to standard error, which blocks when nobody reads it.
void log_of_grpc(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : line->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  log(level, std::string("gRPC: ") + line->message);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const EngineOptions& options)
      : sessions(engine, options.default_route),
        inference(engine, sessions),
        control(engine, options) {}

  Sessions sessions;
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
  gpr_set_log_function(log_of_grpc);
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
  // gRPC would inflate a message before it looks at the size: 4 MB may hold 4 GB.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
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
  impl_->sessions.start_drain();
}

bool GrpcServer::wait_prompts(std::chrono::milliseconds timeout) {
  return impl_->sessions.wait_prompts(timeout);
}

void GrpcServer::abort_streams(const Status& reason) { impl_->sessions.abort_all(reason); }

void GrpcServer::shutdown(std::chrono::milliseconds flush) {
  // Wait here instead of in Shutdown(), which also waits for idle clients to read their GOAWAY.
  impl_->sessions.wait_closed(flush);
  impl_->server->Shutdown(std::chrono::system_clock::now() + kGoodbye);
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace specd::host
