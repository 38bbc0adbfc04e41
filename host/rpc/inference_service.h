// specd.v1.Inference: writes the output of sessions, and reports clients that hang up to them.
#pragma once

#include <grpcpp/grpcpp.h>

#include "core/engine.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/serve/sessions.h"

namespace specd::host {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  // Both outlive it.
  InferenceService(Engine& engine, Sessions& sessions) : engine_(engine), sessions_(sessions) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* wire) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override;
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const v1::GenerateRequest* wire,
                                       v1::RenderChatResponse* response) override;

 private:
  Engine& engine_;
  Sessions& sessions_;
};

}  // namespace specd::host
