// A client of the daemon, for specctl: one channel, blocking calls, Status instead of gRPC's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/proto/specd.grpc.pb.h"

namespace specd::host {

// The answer to one request; ids and text of its first choice.
struct Generation {
  v1::Started started;
  std::vector<int32_t> token_ids;
  std::string text;
  v1::Finished finished;
};

// A request with a string that is not UTF-8 is refused here: kInvalidArgument with its field.
class Client {
 public:
  // `socket` is a path. kUnavailable with a hint when no daemon answers there; kFailedPrecondition
  // when another user's process does.
  static Result<Client> connect(const std::string& socket);

  // PEM files: the authorities that the server's certificate may be signed by, and what the client shows.
  struct Tls {
    std::string ca, certificate, key;
  };
  // Over TCP. `address`: "HOST:PORT", with the host that the server's certificate names. Without `tls` for servers
  // that ask for no certificate. kUnavailable when no daemon answers there.
  static Result<Client> connect_tcp(const std::string& address, const std::optional<Tls>& tls);

  // How long a call may take, generate() and watch_events() apart; 0 = no limit, which is the default. A call that
  // takes longer fails with kDeadlineExceeded.
  void set_time_limit(std::chrono::seconds limit) { limit_ = limit; }

  // [any] `on_message` may be empty; it receives every message as it arrives. Once `stop` is true
  // the next message ends the request with kCancelled.
  Result<Generation> generate(const v1::GenerateRequest& request,
                              const std::function<void(const v1::GenerateResponse&)>& on_message,
                              const std::atomic<bool>* stop = nullptr);

  Result<v1::RenderChatResponse> render(const v1::GenerateRequest& request);
  Result<v1::CancelResponse> cancel(const std::string& request_id);
  Result<v1::ListPluginsResponse> plugins();
  Result<v1::ListRoutesResponse> routes();
  Result<v1::ListModelsResponse> models();
  Result<v1::GetStatusResponse> status();
  Result<v1::GetMemoryResponse> memory();
  Result<v1::ApplyRouteResponse> apply_route(const v1::ApplyRouteRequest& request);
  Result<v1::DeleteRouteResponse> delete_route(const v1::DeleteRouteRequest& request);
  Result<v1::StageRouteResponse> stage_route(const v1::StageRouteRequest& request);
  Result<v1::SetTrafficResponse> set_traffic(const v1::SetTrafficRequest& request);
  Result<v1::PromoteRouteResponse> promote_route(const v1::PromoteRouteRequest& request);
  Result<v1::AbortRouteResponse> abort_route(const v1::AbortRouteRequest& request);
  Result<v1::RollbackRouteResponse> roll_back_route(const v1::RollbackRouteRequest& request);
  Result<v1::GetRouteResponse> get_route(const std::string& name);
  Result<v1::ListRequestsResponse> requests(int32_t max);
  Result<v1::LoadPluginResponse> load_plugin(const v1::LoadPluginRequest& request);
  Result<v1::RetirePluginResponse> retire_plugin(const v1::RetirePluginRequest& request);
  Result<v1::ReloadConfigResponse> reload(const v1::ReloadConfigRequest& request);
  Result<v1::DrainResponse> drain();
  // Calls on_event with each event as it arrives. False ends the call, which is then no error.
  Status watch_events(const v1::WatchEventsRequest& request,
                      const std::function<bool(const v1::Event&)>& on_event);

 private:
  explicit Client(const std::shared_ptr<grpc::Channel>& channel);
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Control::Stub> control_;
  std::chrono::seconds limit_{0};
};

}  // namespace specd::host
