// Who may call what: one line for each RPC. gates.h makes the services of it, and does not compile while an RPC
// has no line here.
#pragma once

#include "host/config/user_options.h"

namespace specd::host {

// UNARY(rpc, request, response, right), STREAM(...) and BIDI(...).
#define SPECD_INFERENCE_RPCS(UNARY, STREAM)                   \
  STREAM(Generate, GenerateRequest, GenerateResponse, kInfer) \
  UNARY(Cancel, CancelRequest, CancelResponse, kInfer)        \
  UNARY(RenderChat, GenerateRequest, RenderChatResponse, kInfer)

#define SPECD_CONTROL_RPCS(UNARY, STREAM)                                     \
  UNARY(ListPlugins, ListPluginsRequest, ListPluginsResponse, kRead)          \
  UNARY(ListRoutes, ListRoutesRequest, ListRoutesResponse, kRead)             \
  UNARY(ListModels, ListModelsRequest, ListModelsResponse, kRead)             \
  UNARY(GetStatus, GetStatusRequest, GetStatusResponse, kRead)                \
  UNARY(GetMemory, GetMemoryRequest, GetMemoryResponse, kRead)                \
  UNARY(GetRoute, GetRouteRequest, GetRouteResponse, kRead)                   \
  UNARY(ListRequests, ListRequestsRequest, ListRequestsResponse, kRead)       \
  STREAM(WatchEvents, WatchEventsRequest, WatchEventsResponse, kRead)         \
  UNARY(ApplyRoute, ApplyRouteRequest, ApplyRouteResponse, kOperate)          \
  UNARY(DeleteRoute, DeleteRouteRequest, DeleteRouteResponse, kOperate)       \
  UNARY(StageRoute, StageRouteRequest, StageRouteResponse, kOperate)          \
  UNARY(SetTraffic, SetTrafficRequest, SetTrafficResponse, kOperate)          \
  UNARY(PromoteRoute, PromoteRouteRequest, PromoteRouteResponse, kOperate)    \
  UNARY(AbortRoute, AbortRouteRequest, AbortRouteResponse, kOperate)          \
  UNARY(RollbackRoute, RollbackRouteRequest, RollbackRouteResponse, kOperate) \
  UNARY(LoadPlugin, LoadPluginRequest, LoadPluginResponse, kOperate)          \
  UNARY(RetirePlugin, RetirePluginRequest, RetirePluginResponse, kOperate)    \
  UNARY(ReloadConfig, ReloadConfigRequest, ReloadConfigResponse, kOperate)    \
  UNARY(Drain, DrainRequest, DrainResponse, kOperate)

#define SPECD_KSERVE_RPCS(UNARY, BIDI)                                            \
  UNARY(ServerLive, ServerLiveRequest, ServerLiveResponse, kInfer)                \
  UNARY(ServerReady, ServerReadyRequest, ServerReadyResponse, kInfer)             \
  UNARY(ModelReady, ModelReadyRequest, ModelReadyResponse, kInfer)                \
  UNARY(ServerMetadata, ServerMetadataRequest, ServerMetadataResponse, kInfer)    \
  UNARY(ModelMetadata, ModelMetadataRequest, ModelMetadataResponse, kInfer)       \
  UNARY(ModelConfig, ModelConfigRequest, ModelConfigResponse, kInfer)             \
  UNARY(ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse, kInfer) \
  UNARY(RepositoryIndex, RepositoryIndexRequest, RepositoryIndexResponse, kInfer) \
  UNARY(ModelInfer, ModelInferRequest, ModelInferResponse, kInfer)                \
  BIDI(ModelStreamInfer, ModelInferRequest, ModelStreamInferResponse, kInfer)

}  // namespace specd::host
