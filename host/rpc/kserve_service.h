// inference.GRPCInferenceService behind its gate (gates.h): Triton's clients over gRPC.
//
//   ModelInferRequest --values by name--> InferCall --outputs--> ModelInferResponse, or one for each piece of text
//
// On a stream the requests run at once, and their responses mix; each has the id of its request. A request that fails has an
// `error_message`, and the stream goes on. RPCs that are not here answer UNIMPLEMENTED.
#pragma once

#include <grpcpp/grpcpp.h>

#include "core/engine.h"
#include "host/proto/kserve.grpc.pb.h"
#include "host/rpc/caller.h"
#include "host/serve/sessions.h"
#include "host/triton/contract.h"
#include "host/triton/infer_call.h"

namespace specd::host {

class KserveService {
 public:
  // Both outlive it.
  KserveService(Engine& engine, Sessions& sessions, TritonModel model)
      : engine_(engine), calls_(engine, sessions), model_(std::move(model)) {}

  // One for each RPC. `context` and messages are gRPC's.
  grpc::ServerUnaryReactor* ServerLive(Caller& caller, grpc::CallbackServerContext* context,
                                       const inference::ServerLiveRequest* request,
                                       inference::ServerLiveResponse* response);
  grpc::ServerUnaryReactor* ServerReady(Caller& caller, grpc::CallbackServerContext* context,
                                        const inference::ServerReadyRequest* request,
                                        inference::ServerReadyResponse* response);
  grpc::ServerUnaryReactor* ModelReady(Caller& caller, grpc::CallbackServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response);
  grpc::ServerUnaryReactor* ServerMetadata(Caller& caller, grpc::CallbackServerContext* context,
                                           const inference::ServerMetadataRequest* request,
                                           inference::ServerMetadataResponse* response);
  grpc::ServerUnaryReactor* ModelMetadata(Caller& caller, grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response);
  grpc::ServerUnaryReactor* ModelConfig(Caller& caller, grpc::CallbackServerContext* context,
                                        const inference::ModelConfigRequest* request,
                                        inference::ModelConfigResponse* response);
  grpc::ServerUnaryReactor* ModelStatistics(Caller& caller, grpc::CallbackServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response);
  grpc::ServerUnaryReactor* RepositoryIndex(Caller& caller, grpc::CallbackServerContext* context,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response);
  grpc::ServerUnaryReactor* ModelInfer(Caller& caller, grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response);
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(Caller& caller, grpc::CallbackServerContext* context);

 private:
  bool is_ready() const;

  Engine& engine_;
  InferCalls calls_;
  const TritonModel model_;
};

}  // namespace specd::host
