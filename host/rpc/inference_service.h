// specd.v1.Inference behind its gates (gates.h): writes the output of sessions, and reports clients that hang up to them.
#pragma once

#include <grpcpp/grpcpp.h>

#include "core/engine.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/rpc/caller.h"
#include "host/serve/sessions.h"

namespace specd::host {

class InferenceService {
 public:
  // Both outlive it.
  InferenceService(Engine& engine, Sessions& sessions) : engine_(engine), sessions_(sessions) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(Caller& caller,
                                                           grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* wire);
  grpc::ServerUnaryReactor* Cancel(Caller& caller, grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request, v1::CancelResponse* response);
  grpc::ServerUnaryReactor* RenderChat(Caller& caller, grpc::CallbackServerContext* context,
                                       const v1::GenerateRequest* wire,
                                       v1::RenderChatResponse* response);

 private:
  Engine& engine_;
  Sessions& sessions_;
};

}  // namespace specd::host
