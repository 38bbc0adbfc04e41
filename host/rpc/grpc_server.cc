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
#include <optional>
#include <utility>
#include <vector>

#include "host/base/unix_socket.h"
#include "host/rpc/caller.h"
#include "host/rpc/control_service.h"
#include "host/rpc/gates.h"
#include "host/rpc/inference_service.h"
#include "host/rpc/listener.h"
#include "host/rpc/calls.h"

namespace specd::host {
namespace {

constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;  // per connection
constexpr std::chrono::milliseconds kGoodbye{100};
constexpr size_t kQuotaBytes = size_t{512} << 20;
constexpr size_t kConnectionsMin = 16, kConnectionsMax = 1024;
constexpr size_t kOtherDescriptors = 200;  // files, devices
constexpr std::chrono::seconds kAnswerLimit{10};
constexpr int kIdleMs = 300'000;  // then a connection without calls is closed

// gRPC writes its own log to standard error, which blocks when nobody reads it.
void log_of_grpc(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : line->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  log(level, std::string("gRPC: ") + line->message);
}

// Of each of so many sockets and ports.
Listener::Limits connection_limits(size_t n_listeners, bool has_http) {
  rlimit descriptors{};
  size_t n = kConnectionsMax;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur != RLIM_INFINITY) {
    const auto limit = static_cast<size_t>(descriptors.rlim_cur);
    const size_t others = kOtherDescriptors + (has_http ? limit / 4 : 0);
    const size_t left = limit - std::min(limit, others);
    n = std::clamp(left / Listener::kDescriptorsPerConnection, kConnectionsMin, kConnectionsMax);
  }
  n = std::max(n / n_listeners, kConnectionsMin);
  return {.connections = n, .of_origin = n / 2, .of_user = n / 2, .of_users = n - n / 8};
}

// A server whose threads or descriptors are short may start and never answer.
Status check_answers(const Door& door) {
  const auto channel =
      grpc::CreateChannel(socket_uri(door.path), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerLimit);
  grpc::Status status;
  if (door.has_kserve) {
    inference::ServerLiveResponse response;
    status = inference::GRPCInferenceService::NewStub(channel)->ServerLive(&context, {}, &response);
  } else if (door.has_control) {
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

// What an entrance is made of.
struct Plan {
  Door door;  // the path of a port is its address, once it listens
  bool is_port = false;
  TcpOptions port = {};
  const TlsKeys* tls = nullptr;
  const char* key = "";  // of the port, in the configuration

  bool is_for_anybody() const { return is_port && tls == nullptr; }
};

// One socket, or two, a port, and what serves Triton's protocol.
std::vector<Plan> plans_of(const Config& config, const TlsKeys* tls) {
  const std::string& path = config.socket_path;
  const std::string& control = config.control.has_value() ? config.control->socket_path : path;
  std::vector<Plan> plans;
  if (config.control.has_value()) {
    plans.push_back({.door = {.path = path, .has_control = false, .other_path = control}});
    plans.push_back({.door = {.path = control, .has_inference = false, .other_path = path}});
  } else {
    plans.push_back({.door = {.path = path, .other_path = ""}});
  }
  if (config.tcp.has_value())
    plans.push_back(
        {.door = {.path = "", .has_control = config.tcp->tls.has_value(), .other_path = control},
         .is_port = true,
         .port = *config.tcp,
         .tls = tls,
         .key = "tcp.listen"});
  if (const auto& kserve = config.kserve; kserve.has_value())
    plans.push_back({.door = {.path = kserve->socket_path,
                              .has_inference = false,
                              .has_control = false,
                              .has_kserve = true,
                              .other_path = control},
                     .is_port = kserve->socket_path.empty(),
                     .port = {.address = kserve->address, .port = kserve->port, .tls = {}},
                     .tls = nullptr,
                     .key = "kserve.listen"});
  return plans;
}

// Nobody keeps them out: who can become them needs no right of ours.
bool is_machines(const UserOptions& user) { return user.id == geteuid() || user.id == 0; }

// Who calls from this machine over a port without certificates.
const UserOptions kAnybody{.name = "anybody", .rights = {Right::kInfer}};

bool is_anybody(const UserOptions& user) {
  return !user.id.has_value() && user.certificate.empty();
}

// Whether the entrance can recognize this user: by the socket's peer, by a certificate, or without either.
bool may_come(const UserOptions& user, const Plan& plan) {
  if (plan.is_for_anybody()) return is_anybody(user);
  return plan.is_port ? !user.certificate.empty() : user.id.has_value();
}

// Whether this user, who may come, is the one who shows that.
bool is_user(const UserOptions& user, const Listener::Credentials& shown) {
  if (is_anybody(user)) return true;
  if (user.certificate.empty()) return shown.user == user.id;
  return std::ranges::find(shown.names, user.certificate) != shown.names.end();
}

// Those of the configuration, and with every right the user of the daemon and root if they are not among them.
std::vector<UserOptions> users_of(const Config& config) {
  std::vector<UserOptions> users = config.users;
  users.push_back(kAnybody);  // matches only on ports that ask for no credentials
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
  // One user behind one door.
  struct Served {
    Served(Impl& impl, Caller& caller, const Door& door)
        : user(caller),
          inference(impl.inference, caller, door),
          control(impl.control, caller, door),
          kserve(impl.kserve, caller, door) {}

    const Caller& user;
    InferenceGate inference;
    ControlGate control;
    KserveGate kserve;
    std::unique_ptr<grpc::Server> server;
    Listener::Take take;
  };
  struct Entrance {
    Plan plan;
    std::vector<std::unique_ptr<Served>> served;
    std::unique_ptr<Listener> listener;
  };

  Impl(Engine& engine, Sessions& all, const Config& config, DaemonActions actions)
      : has_http(config.http.has_value()),
        sessions(all),
        inference(engine, sessions),
        control(engine, config.engine, std::move(actions)),
        kserve(
            engine, sessions,
            {.name = config.engine.model.name, .version = std::to_string(config.model_version())}) {
  }

  Status open(Entrance& entrance, size_t n_entrances, const grpc::ResourceQuota& quota);
  Status serve(Entrance& entrance, Caller& caller, const grpc::ResourceQuota& quota);
  // Calls fn with each grpc::Server.
  template <typename Fn>
  void each_server(Fn&& fn) {
    for (const auto& entrance : entrances)
      for (const auto& each : entrance->served)
        if (each->server != nullptr) fn(*each->server);
  }

  const bool has_http;
  Sessions& sessions;
  InferenceService inference;
  ControlService control;
  KserveService kserve;
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<std::unique_ptr<Entrance>> entrances;
};

GrpcServer::GrpcServer() = default;

GrpcServer::~GrpcServer() {
  if (impl_ != nullptr && !impl_->entrances.empty()) shutdown(std::chrono::milliseconds(0));
}

// Makes the server of this caller behind this door.
Status GrpcServer::Impl::serve(Entrance& entrance, Caller& caller,
                               const grpc::ResourceQuota& quota) {
  Served& served =
      *entrance.served.emplace_back(std::make_unique<Served>(*this, caller, entrance.plan.door));
  grpc::ServerBuilder builder;
  const Door& door = entrance.plan.door;
  if (door.has_kserve) {
    builder.RegisterService(&served.kserve);
  } else {
    builder.RegisterService(&served.inference);
    builder.RegisterService(&served.control);
  }
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
  health->SetServingStatus("specd.v1.Inference", door.has_inference);
  health->SetServingStatus("specd.v1.Control", door.has_control);
  health->SetServingStatus("inference.GRPCInferenceService", door.has_kserve);
  return Status();
}

Status GrpcServer::Impl::open(Entrance& entrance, size_t n_entrances,
                              const grpc::ResourceQuota& quota) {
  Plan& plan = entrance.plan;
  bool is_open = false, is_own = false;
  for (const auto& caller : callers) {
    const UserOptions& user = caller->options();
    if (!may_come(user, plan) ||
        std::ranges::none_of(user.rights, [&](Right right) { return plan.door.serves(right); }))
      continue;
    is_own = is_own || user.id == geteuid();
    is_open = is_open || !is_machines(user);
    SPECD_OK_OR_RETURN(serve(entrance, *caller, quota));
  }
  Result<ListenSocket> socket = plan.is_port
                                    ? ListenSocket::at_address(plan.port.address, plan.port.port)
                                    : ListenSocket::at_path(plan.door.path, is_open);
  if (!socket.ok()) return plan.is_port ? socket.status().in_field(plan.key) : socket.status();
  if (plan.is_port) plan.door.path = socket.value().name();
  const auto admit = [this, &entrance](const Listener::Credentials& shown) -> Listener::Host {
    // The first user who fits, with rights or without.
    const auto caller = std::ranges::find_if(callers, [&](const auto& each) {
      return may_come(each->options(), entrance.plan) && is_user(each->options(), shown);
    });
    if (caller == callers.end()) return {};
    const auto found = std::ranges::find_if(
        entrance.served, [&caller](const auto& each) { return &each->user == caller->get(); });
    if (found == entrance.served.end()) return {};
    return {&(*found)->take, (*caller)->name(), is_machines((*caller)->options())};
  };
  SPECD_TRY(entrance.listener,
            Listener::start(std::move(socket).value(), connection_limits(n_entrances, has_http),
                            admit, plan.tls));
  return is_own ? check_answers(plan.door) : Status();
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(Engine& engine, Sessions& sessions,
                                                      const Config& config, DaemonActions actions,
                                                      const TlsKeys* tls) {
  gpr_set_log_function(log_of_grpc);
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->impl_ = std::make_unique<Impl>(engine, sessions, config, std::move(actions));
  Impl& impl = *result->impl_;
  for (UserOptions& user : users_of(config))
    impl.callers.push_back(std::make_unique<Caller>(std::move(user)));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ResourceQuota quota("specd");
  quota.Resize(kQuotaBytes);
  std::vector<Plan> plans = plans_of(config, tls);
  for (Plan& plan : plans) {
    Impl::Entrance& entrance = *impl.entrances.emplace_back(std::make_unique<Impl::Entrance>());
    entrance.plan = std::move(plan);
    SPECD_OK_OR_RETURN(impl.open(entrance, plans.size(), quota));
  }
  return result;
}

std::vector<std::string> GrpcServer::addresses() const {
  std::vector<std::string> all;
  for (const auto& entrance : impl_->entrances) {
    const std::string& name = entrance->listener->name();
    all.push_back(name.starts_with('/') ? "unix:" + name : name);
  }
  return all;
}

Status GrpcServer::door() const {
  for (const auto& entrance : impl_->entrances) SPECD_OK_OR_RETURN(entrance->listener->status());
  return Status();
}

void GrpcServer::start_drain() {
  impl_->each_server(
      [](grpc::Server& server) { server.GetHealthCheckService()->SetServingStatus(false); });
}

void GrpcServer::shutdown(std::chrono::milliseconds flush) {
  // Wait here instead of in Shutdown(), which also waits for idle clients to read their GOAWAY.
  const auto end = std::chrono::steady_clock::now() + flush;
  impl_->sessions.wait_closed(flush);
  impl_->control.end_streams(kGoodbye);
  for (const auto& entrance : impl_->entrances)
    if (entrance->listener != nullptr) entrance->listener->stop_accepting();
  impl_->each_server([](grpc::Server& server) {
    server.Shutdown(std::chrono::system_clock::now() + kGoodbye);
    server.Wait();
  });
  for (const auto& entrance : impl_->entrances) {
    for (const auto& each : entrance->served) each->server.reset();
    if (entrance->listener != nullptr)
      entrance->listener->finish(
          std::max(kGoodbye, std::chrono::duration_cast<std::chrono::milliseconds>(
                                 end - std::chrono::steady_clock::now())));
  }
  impl_->entrances.clear();
}

}  // namespace specd::host
