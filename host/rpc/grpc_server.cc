#include "host/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "host/base/unix_socket.h"
#include "host/rpc/caller.h"
#include "host/rpc/control_service.h"
#include "host/rpc/gates.h"
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

// Of each of so many sockets.
Listener::Limits connection_limits(size_t n_sockets) {
  rlimit descriptors{};
  size_t n = kConnectionsMax;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur != RLIM_INFINITY) {
    const auto limit = static_cast<size_t>(descriptors.rlim_cur);
    const size_t left = limit - std::min(limit, kOtherDescriptors);
    n = std::clamp(left / Listener::kDescriptorsPerConnection, kConnectionsMin, kConnectionsMax);
  }
  n = std::max(n / n_sockets, kConnectionsMin);
  return {n, n / 2, n / 2, n - n / 8};
}

// A server whose threads or descriptors are short may start and never answer.
Status check_answers(const Door& door) {
  const auto channel =
      grpc::CreateChannel(socket_uri(door.path), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerLimit);
  grpc::Status status;
  if (door.has_control) {
    v1::GetStatusResponse response;
    status = v1::Control::NewStub(channel)->GetStatus(&context, {}, &response);
  } else {
    v1::CancelResponse response;
    status = v1::Inference::NewStub(channel)->Cancel(&context, {}, &response);
  }
  // The configuration may leave the daemon's own user without this right.
  if (status.ok() || status.error_code() == grpc::StatusCode::PERMISSION_DENIED) return Status();
  return Status(Code::kUnavailable,
                "the server does not answer a call of its own: " + status.error_message() +
                    "; are threads (ulimit -u, pids.max) or descriptors (ulimit -n) short?");
}

// One socket, or two.
std::vector<Door> doors_of(const Config& config) {
  const std::string& path = config.socket_path;
  if (!config.control.has_value()) return {{.path = path, .other_path = ""}};
  const std::string& control = config.control->socket_path;
  return {{.path = path, .has_control = false, .other_path = control},
          {.path = control, .has_inference = false, .other_path = path}};
}

// Those of the configuration, and with every right the user of the daemon and root if they are not among them.
std::vector<UserOptions> users_of(const Config& config) {
  std::vector<UserOptions> users = config.users;
  for (const uid_t id : {geteuid(), uid_t{0}}) {
    if (std::ranges::find(users, id, &UserOptions::id) != users.end()) continue;
    users.push_back({.name = id == 0 ? "root" : std::to_string(id),
                     .id = id,
                     .rights = {Right::kInfer, Right::kRead, Right::kOperate}});
  }
  return users;
}

}  // namespace

struct GrpcServer::Impl {
  // One user behind one socket.
  struct Served {
    Served(Impl& impl, Caller& caller, const Door& door)
        : user(caller.options().id),
          inference(impl.inference, caller, door),
          control(impl.control, caller, door) {}

    const uid_t user;
    InferenceGate inference;
    ControlGate control;
    std::unique_ptr<grpc::Server> server;
    Listener::Take take;
  };
  struct Socket {
    Door door;
    std::vector<std::unique_ptr<Served>> served;
    std::unique_ptr<Listener> listener;
  };

  Impl(Engine& engine, const Config& config, DaemonActions actions)
      : sessions(engine, config.engine.default_route),
        inference(engine, sessions),
        control(engine, config.engine, std::move(actions)) {}

  Status open(Socket& socket, size_t n_sockets, const grpc::ResourceQuota& quota);
  // Calls fn with each grpc::Server.
  template <typename Fn>
  void each_server(Fn&& fn) {
    for (const auto& socket : sockets)
      for (const auto& each : socket->served)
        if (each->server != nullptr) fn(*each->server);
  }

  Sessions sessions;
  InferenceService inference;
  ControlService control;
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<std::unique_ptr<Socket>> sockets;
};

GrpcServer::GrpcServer() = default;

GrpcServer::~GrpcServer() {
  if (impl_ != nullptr && !impl_->sockets.empty()) shutdown(std::chrono::milliseconds(0));
}

Status GrpcServer::Impl::open(Socket& socket, size_t n_sockets, const grpc::ResourceQuota& quota) {
  bool is_open = false, is_own = false;
  for (const auto& caller : callers) {
    const uid_t id = caller->options().id;
    if (std::ranges::none_of(caller->options().rights,
                             [&](Right right) { return socket.door.serves(right); }))
      continue;
    is_own = is_own || id == geteuid();
    is_open = is_open || (id != geteuid() && id != 0);
    Served& served =
        *socket.served.emplace_back(std::make_unique<Served>(*this, *caller, socket.door));
    grpc::ServerBuilder builder;
    builder.RegisterService(&served.inference);
    builder.RegisterService(&served.control);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.SetMaxSendMessageSize(kMessageBytesMax);
    // gRPC would inflate a message before it looks at the size: 4 MB may hold 4 GB.
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.SetResourceQuota(quota);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    served.server = builder.BuildAndStart();
    if (served.server == nullptr) return Status(Code::kUnavailable, "gRPC's server does not start");
    served.take = [server = served.server.get()](int connection) {
      grpc::AddInsecureChannelFromFd(server, connection);
    };
    grpc::HealthCheckServiceInterface* health = served.server->GetHealthCheckService();
    health->SetServingStatus("specd.v1.Inference", socket.door.has_inference);
    health->SetServingStatus("specd.v1.Control", socket.door.has_control);
  }
  const auto admit = [&served = socket.served](uid_t user) -> const Listener::Take* {
    const auto found =
        std::ranges::find_if(served, [user](const auto& each) { return each->user == user; });
    return found == served.end() ? nullptr : &(*found)->take;
  };
  SPECD_TRY(socket.listener,
            Listener::start(socket.door.path, is_open, connection_limits(n_sockets), admit));
  return is_own ? check_answers(socket.door) : Status();
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(Engine& engine, const Config& config,
                                                      DaemonActions actions) {
  gpr_set_log_function(log_of_grpc);
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->impl_ = std::make_unique<Impl>(engine, config, std::move(actions));
  Impl& impl = *result->impl_;
  for (UserOptions& user : users_of(config))
    impl.callers.push_back(std::make_unique<Caller>(std::move(user)));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ResourceQuota quota("specd");
  quota.Resize(kQuotaBytes);
  std::vector<Door> doors = doors_of(config);
  for (Door& door : doors) {
    Impl::Socket& socket = *impl.sockets.emplace_back(std::make_unique<Impl::Socket>());
    socket.door = std::move(door);
    SPECD_OK_OR_RETURN(impl.open(socket, doors.size(), quota));
  }
  return result;
}

Status GrpcServer::door() const {
  for (const auto& socket : impl_->sockets) SPECD_OK_OR_RETURN(socket->listener->status());
  return Status();
}

void GrpcServer::start_drain() {
  impl_->each_server(
      [](grpc::Server& server) { server.GetHealthCheckService()->SetServingStatus(false); });
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
  for (const auto& socket : impl_->sockets)
    if (socket->listener != nullptr) socket->listener->stop_accepting();
  impl_->each_server([](grpc::Server& server) {
    server.Shutdown(std::chrono::system_clock::now() + kGoodbye);
    server.Wait();
  });
  for (const auto& socket : impl_->sockets) {
    for (const auto& each : socket->served) each->server.reset();
    if (socket->listener != nullptr)
      socket->listener->finish(
          std::max(kGoodbye, std::chrono::duration_cast<std::chrono::milliseconds>(
                                 end - std::chrono::steady_clock::now())));
  }
  impl_->sockets.clear();
}

}  // namespace specd::host
