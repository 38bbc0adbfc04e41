#include "host/rpc/client.h"

#include <chrono>
#include <filesystem>

#include "core/base/json.h"
#include "host/base/unix_socket.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

// gRPC may lose an event of a socket, and then sees it when it looks again 5 s later (grpc/grpc#28866).
constexpr std::chrono::seconds kConnectLimit{8};
constexpr uint64_t kPemBytesMax = uint64_t{1} << 20;

Status from_wire(const grpc::Status& status) {
  Code code = Code::kInternal;
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return Status();
    case grpc::StatusCode::INVALID_ARGUMENT:
      code = Code::kInvalidArgument;
      break;
    case grpc::StatusCode::NOT_FOUND:
      code = Code::kNotFound;
      break;
    case grpc::StatusCode::FAILED_PRECONDITION:
      code = Code::kFailedPrecondition;
      break;
    case grpc::StatusCode::PERMISSION_DENIED:
      code = Code::kPermissionDenied;
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      code = Code::kExhausted;
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      code = Code::kUnsupported;
      break;
    case grpc::StatusCode::DATA_LOSS:
      code = Code::kDataLoss;
      break;
    case grpc::StatusCode::CANCELLED:
      code = Code::kCancelled;
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      code = Code::kDeadlineExceeded;
      break;
    case grpc::StatusCode::UNAVAILABLE:
      code = Code::kUnavailable;
      break;
    default:
      break;
  }
  return {code, status.error_message()};
}

// gRPC rejects a message with a non-UTF-8 string before the daemon sees it, with words that name no
// field. Escaping the string would send a name that nobody gave.
Status check_utf8(google::protobuf::Message& sent) {
  const std::string field = make_utf8(sent);
  return field.empty() ? Status() : Status(Code::kInvalidArgument, field, "expected UTF-8");
}

template <typename Request, typename Response, typename Stub>
Result<Response> call(std::chrono::seconds limit, Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      const Request& request = Request()) {
  grpc::ClientContext context;
  const auto deadline = std::chrono::system_clock::now() + limit;
  if (limit.count() > 0) context.set_deadline(deadline);
  Response response;
  Request sent = request;
  SPECD_OK_OR_RETURN(check_utf8(sent));
  const Status status = from_wire((stub.*method)(&context, sent, &response));
  // Else it is the daemon's own answer.
  const bool is_late = limit.count() > 0 && std::chrono::system_clock::now() >= deadline;
  if (status.code() == Code::kDeadlineExceeded && is_late)
    return Status(status.code(), "the daemon did not answer within " +
                                     std::to_string(limit.count()) + " s (" + status.message() +
                                     ")");
  if (!status.ok()) return status;
  return response;
}

}  // namespace

Client::Client(const std::shared_ptr<grpc::Channel>& channel)
    : inference_(v1::Inference::NewStub(channel)), control_(v1::Control::NewStub(channel)) {}

Result<Client> Client::connect(const std::string& socket) {
  std::error_code failure;
  const std::string path = std::filesystem::absolute(socket, failure).lexically_normal().string();
  SPECD_OK_OR_RETURN(check_server_user(path));
  const auto channel = grpc::CreateChannel(socket_uri(path), grpc::InsecureChannelCredentials());
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectLimit))
    return Status(Code::kUnavailable, "nobody answers on " + path +
                                          "; is specd running with this `listen`, and is this its "
                                          "user?");
  return Client(channel);
}

Result<Client> Client::connect_tcp(const std::string& address, const std::optional<Tls>& tls) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls.has_value()) {
    grpc::SslCredentialsOptions files;
    SPECD_TRY(files.pem_root_certs, read_text_file(tls->ca, kPemBytesMax));
    SPECD_TRY(files.pem_cert_chain, read_text_file(tls->certificate, kPemBytesMax));
    SPECD_TRY(files.pem_private_key, read_text_file(tls->key, kPemBytesMax));
    credentials = grpc::SslCredentials(files);
  }
  const auto channel = grpc::CreateChannel("dns:///" + address, credentials);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectLimit))
    return Status(Code::kUnavailable,
                  "nobody answers on " + address +
                      (tls.has_value() ? " who has a certificate of this host signed by " +
                                             tls->ca + ", and takes that of this client"
                                       : "; does specd listen there, without certificates?"));
  return Client(channel);
}

Result<Generation> Client::generate(
    const v1::GenerateRequest& request,
    const std::function<void(const v1::GenerateResponse&)>& on_message,
    const std::atomic<bool>* stop) {
  grpc::ClientContext context;
  v1::GenerateRequest sent = request;
  SPECD_OK_OR_RETURN(check_utf8(sent));
  const auto reader = inference_->Generate(&context, sent);
  Generation generation;
  bool has_end = false;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (on_message) on_message(message);
    if (stop != nullptr && *stop) context.TryCancel();
    if (message.has_started()) generation.started = message.started();
    if (message.has_chunk() && message.chunk().index() == 0) {
      const v1::Chunk& chunk = message.chunk();
      generation.token_ids.insert(generation.token_ids.end(), chunk.token_ids().begin(),
                                  chunk.token_ids().end());
      generation.text += chunk.text();
    }
    if (message.has_finished()) {
      generation.finished = message.finished();
      has_end = true;
    }
  }
  const Status status = from_wire(reader->Finish());
  if (!status.ok()) return status;
  if (!has_end) return Status(Code::kInternal, "the stream ended without its last message");
  return generation;
}

Result<v1::RenderChatResponse> Client::render(const v1::GenerateRequest& request) {
  return call<v1::GenerateRequest, v1::RenderChatResponse>(
      limit_, *inference_, &v1::Inference::Stub::RenderChat, request);
}

Result<v1::CancelResponse> Client::cancel(const std::string& request_id) {
  v1::CancelRequest request;
  request.set_request_id(request_id);
  return call<v1::CancelRequest, v1::CancelResponse>(limit_, *inference_,
                                                     &v1::Inference::Stub::Cancel, request);
}
Result<v1::ListPluginsResponse> Client::plugins() {
  return call<v1::ListPluginsRequest, v1::ListPluginsResponse>(limit_, *control_,
                                                               &v1::Control::Stub::ListPlugins);
}
Result<v1::ListRoutesResponse> Client::routes() {
  return call<v1::ListRoutesRequest, v1::ListRoutesResponse>(limit_, *control_,
                                                             &v1::Control::Stub::ListRoutes);
}
Result<v1::ListModelsResponse> Client::models() {
  return call<v1::ListModelsRequest, v1::ListModelsResponse>(limit_, *control_,
                                                             &v1::Control::Stub::ListModels);
}
Result<v1::GetStatusResponse> Client::status() {
  return call<v1::GetStatusRequest, v1::GetStatusResponse>(limit_, *control_,
                                                           &v1::Control::Stub::GetStatus);
}
Result<v1::GetMemoryResponse> Client::memory() {
  return call<v1::GetMemoryRequest, v1::GetMemoryResponse>(limit_, *control_,
                                                           &v1::Control::Stub::GetMemory);
}

Result<v1::ApplyRouteResponse> Client::apply_route(const v1::ApplyRouteRequest& request) {
  return call<v1::ApplyRouteRequest, v1::ApplyRouteResponse>(
      limit_, *control_, &v1::Control::Stub::ApplyRoute, request);
}
Result<v1::DeleteRouteResponse> Client::delete_route(const v1::DeleteRouteRequest& request) {
  return call<v1::DeleteRouteRequest, v1::DeleteRouteResponse>(
      limit_, *control_, &v1::Control::Stub::DeleteRoute, request);
}
Result<v1::StageRouteResponse> Client::stage_route(const v1::StageRouteRequest& request) {
  return call<v1::StageRouteRequest, v1::StageRouteResponse>(
      limit_, *control_, &v1::Control::Stub::StageRoute, request);
}
Result<v1::SetTrafficResponse> Client::set_traffic(const v1::SetTrafficRequest& request) {
  return call<v1::SetTrafficRequest, v1::SetTrafficResponse>(
      limit_, *control_, &v1::Control::Stub::SetTraffic, request);
}
Result<v1::PromoteRouteResponse> Client::promote_route(const v1::PromoteRouteRequest& request) {
  return call<v1::PromoteRouteRequest, v1::PromoteRouteResponse>(
      limit_, *control_, &v1::Control::Stub::PromoteRoute, request);
}
Result<v1::AbortRouteResponse> Client::abort_route(const v1::AbortRouteRequest& request) {
  return call<v1::AbortRouteRequest, v1::AbortRouteResponse>(
      limit_, *control_, &v1::Control::Stub::AbortRoute, request);
}
Result<v1::RollbackRouteResponse> Client::roll_back_route(const v1::RollbackRouteRequest& request) {
  return call<v1::RollbackRouteRequest, v1::RollbackRouteResponse>(
      limit_, *control_, &v1::Control::Stub::RollbackRoute, request);
}
Result<v1::GetRouteResponse> Client::get_route(const std::string& name) {
  v1::GetRouteRequest request;
  request.set_name(name);
  return call<v1::GetRouteRequest, v1::GetRouteResponse>(limit_, *control_,
                                                         &v1::Control::Stub::GetRoute, request);
}

Result<v1::ListRequestsResponse> Client::requests(int32_t max) {
  v1::ListRequestsRequest request;
  request.set_max(max);
  return call<v1::ListRequestsRequest, v1::ListRequestsResponse>(
      limit_, *control_, &v1::Control::Stub::ListRequests, request);
}
Result<v1::LoadPluginResponse> Client::load_plugin(const v1::LoadPluginRequest& request) {
  return call<v1::LoadPluginRequest, v1::LoadPluginResponse>(
      limit_, *control_, &v1::Control::Stub::LoadPlugin, request);
}
Result<v1::RetirePluginResponse> Client::retire_plugin(const v1::RetirePluginRequest& request) {
  return call<v1::RetirePluginRequest, v1::RetirePluginResponse>(
      limit_, *control_, &v1::Control::Stub::RetirePlugin, request);
}
Result<v1::ReloadConfigResponse> Client::reload(const v1::ReloadConfigRequest& request) {
  return call<v1::ReloadConfigRequest, v1::ReloadConfigResponse>(
      limit_, *control_, &v1::Control::Stub::ReloadConfig, request);
}
Result<v1::DrainResponse> Client::drain() {
  return call<v1::DrainRequest, v1::DrainResponse>(limit_, *control_, &v1::Control::Stub::Drain,
                                                   v1::DrainRequest());
}

Status Client::watch_events(const v1::WatchEventsRequest& request,
                            const std::function<bool(const v1::Event&)>& on_event) {
  grpc::ClientContext context;
  const auto reader = control_->WatchEvents(&context, request);
  v1::WatchEventsResponse message;
  bool goes_on = true;
  while (reader->Read(&message)) {
    for (const v1::Event& event : message.events()) goes_on = goes_on && on_event(event);
    if (!goes_on) context.TryCancel();
  }
  const Status status = from_wire(reader->Finish());
  return goes_on ? status : Status();
}

}  // namespace specd::host
