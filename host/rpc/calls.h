// Shared by the services.
#pragma once

#include <grpcpp/grpcpp.h>

#include "host/rpc/proto_text.h"
#include "host/rpc/wire.h"

namespace specd::host {

constexpr int kMessageBytesMax = 4 << 20;

// Ends a unary call at once. Strings of `response` that are not UTF-8 are escaped.
inline grpc::ServerUnaryReactor* finished(grpc::CallbackServerContext* context,
                                          const Status& status,
                                          google::protobuf::Message* response = nullptr) {
  if (response != nullptr) make_utf8(*response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status_to_wire(status));
  return reactor;
}

// End a stream that is refused.
template <typename Request, typename Response>
class RefusedBidi final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit RefusedBidi(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};
template <typename Response>
class RefusedStream final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace specd::host
