// The gRPC services of one caller on one socket: each RPC is refused, or handed to the service behind it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <type_traits>

#include "core/base/log.h"
#include "host/proto/specd.grpc.pb.h"
#include "host/rpc/calls.h"
#include "host/rpc/caller.h"
#include "host/rpc/control_service.h"
#include "host/rpc/inference_service.h"
#include "host/rpc/kserve_service.h"
#include "host/rpc/policy.h"

namespace specd::host {

// How many RPCs a generated CallbackService has: it is one class within another for each.
template <typename Service>
struct RpcCount : std::integral_constant<int, 0> {};
template <template <typename> typename With, typename Base>
struct RpcCount<With<Base>> : std::integral_constant<int, 1 + RpcCount<Base>::value> {};

// What a socket or a port serves.
struct Door {
  std::string path;  // or an address of TCP
  bool has_inference = true, has_control = true;
  bool has_kserve = false;  // instead of both
  std::string other_path;   // where the rest is served; empty if nowhere

  bool serves(Right right) const {
    return right == Right::kInfer ? has_inference || has_kserve : has_control;
  }
};

// [any] All outlive the gate.
template <typename Service>
class Gate {
 public:
  Gate(Service& service, Caller& caller, const Door& door)
      : service_(service), caller_(caller), door_(door) {}

 protected:
  // Why the caller may not call this here.
  std::optional<grpc::Status> refusal(const char* rpc, Right right) const {
    if (!door_.serves(right))
      return denied(std::string(rpc) + " is not served on " + door_.path + ", but on " +
                    door_.other_path);
    if (caller_.may(right)) return std::nullopt;
    std::string has;
    for (const Right each : caller_.options().rights)
      has += (has.empty() ? "" : ", ") + std::string(right_name(each));
    if (const uint64_t n = right == Right::kOperate ? caller_.refuse() : 0; n > 0)
      log(LogLevel::kWarn,
          "control: " + std::string(rpc) + ", by " + caller_.name() +
              ": refused, for want of the right '" + right_name(right) + "'" +
              (n > 1 ? ", and " + std::to_string(n - 1) + " more since the last line" : ""));
    return denied(std::string(rpc) + " needs the right '" + right_name(right) + "', and " +
                  caller_.name() + " has '" + has +
                  "'; whoever runs specd gives rights in `users` of its configuration");
  }

  Service& service_;
  Caller& caller_;
  const Door& door_;

 private:
  static grpc::Status denied(const std::string& why) {
    return {grpc::StatusCode::PERMISSION_DENIED, why};
  }
};

#define SPECD_GATED_UNARY_OF(package, rpc, request, response, right)                      \
  grpc::ServerUnaryReactor* rpc(grpc::CallbackServerContext* context,                     \
                                const package::request* asked, package::response* answer) \
      override {                                                                          \
    if (const auto why = refusal(#rpc, Right::right); why.has_value()) {                  \
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();                      \
      reactor->Finish(*why);                                                              \
      return reactor;                                                                     \
    }                                                                                     \
    return service_.rpc(caller_, context, asked, answer);                                 \
  }
#define SPECD_GATED_UNARY(rpc, request, response, right) \
  SPECD_GATED_UNARY_OF(v1, rpc, request, response, right)
#define SPECD_GATED_KSERVE(rpc, request, response, right) \
  SPECD_GATED_UNARY_OF(inference, rpc, request, response, right)
#define SPECD_GATED_BIDI(rpc, request, response, right)                      \
  grpc::ServerBidiReactor<inference::request, inference::response>* rpc(     \
      grpc::CallbackServerContext* context) override {                       \
    if (const auto why = refusal(#rpc, Right::right); why.has_value())       \
      return new RefusedBidi<inference::request, inference::response>(*why); \
    return service_.rpc(caller_, context);                                   \
  }
#define SPECD_GATED_STREAM(rpc, request, response, right)                           \
  grpc::ServerWriteReactor<v1::response>* rpc(grpc::CallbackServerContext* context, \
                                              const v1::request* asked) override {  \
    if (const auto why = refusal(#rpc, Right::right); why.has_value())              \
      return new RefusedStream<v1::response>(*why);                                 \
    return service_.rpc(caller_, context, asked);                                   \
  }
// Terms of a sum.
#define SPECD_ONE_RPC(...) +1  // NOLINT(bugprone-macro-parentheses)

class InferenceGate final : public v1::Inference::CallbackService, Gate<InferenceService> {
 public:
  using Gate::Gate;
  SPECD_INFERENCE_RPCS(SPECD_GATED_UNARY, SPECD_GATED_STREAM)
};
static_assert(RpcCount<v1::Inference::CallbackService>::value ==
                  SPECD_INFERENCE_RPCS(SPECD_ONE_RPC, SPECD_ONE_RPC),
              "an RPC of Inference has no line in policy.h");

class ControlGate final : public v1::Control::CallbackService, Gate<ControlService> {
 public:
  using Gate::Gate;
  SPECD_CONTROL_RPCS(SPECD_GATED_UNARY, SPECD_GATED_STREAM)
};
static_assert(RpcCount<v1::Control::CallbackService>::value ==
                  SPECD_CONTROL_RPCS(SPECD_ONE_RPC, SPECD_ONE_RPC),
              "an RPC of Control has no line in policy.h");

class KserveGate final : public inference::GRPCInferenceService::CallbackService,
                         Gate<KserveService> {
 public:
  using Gate::Gate;
  SPECD_KSERVE_RPCS(SPECD_GATED_KSERVE, SPECD_GATED_BIDI)
};
static_assert(RpcCount<inference::GRPCInferenceService::CallbackService>::value ==
                  SPECD_KSERVE_RPCS(SPECD_ONE_RPC, SPECD_ONE_RPC),
              "an RPC of GRPCInferenceService has no line in policy.h");

#undef SPECD_ONE_RPC
#undef SPECD_GATED_BIDI
#undef SPECD_GATED_KSERVE
#undef SPECD_GATED_STREAM
#undef SPECD_GATED_UNARY
#undef SPECD_GATED_UNARY_OF

}  // namespace specd::host
