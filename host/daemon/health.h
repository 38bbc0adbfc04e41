// What /metrics and the probes answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/engine.h"
#include "host/http/http_message.h"
#include "host/rpc/grpc_server.h"
#include "host/triton/contract.h"

namespace specd::host {

// Must outlive the server that calls it.
class Health {
 public:
  // A step that takes longer than `stall_seconds` is assumed to hang.
  explicit Health(uint32_t stall_seconds) : stall_seconds_(stall_seconds) {}

  // Call when engine and gRPC server are ready; both must outlive the HTTP server. Every answer
  // before is "loading".
  void loaded(const Engine& engine, const GrpcServer& server) {
    server_ = &server;
    engine_ = &engine;
  }
  void draining() { draining_ = true; }

  // [any] What /health/live and /health/ready say.
  bool is_live() const { return live().status == 200; }
  bool is_ready() const { return ready().status == 200; }

  // GET, on any thread:
  //   /metrics       the engine's metrics and the build; 503 while loading
  //   /health/live   503 when a step takes too long
  //   /health/ready  503 while loading and draining, and while no client can connect; vLLM's
  //                  /health and /ping are the same
  std::vector<HttpRoute> routes() const;
  // GET /metrics of a port of its own: Triton's names; 503 while loading.
  HttpRoute triton_metrics(const TritonModel& model) const;

 private:
  HttpAnswer live() const;
  HttpAnswer ready() const;
  HttpAnswer metrics() const;

  uint32_t stall_seconds_;
  std::atomic<const GrpcServer*> server_{nullptr};  // set before engine_
  std::atomic<const Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
};

}  // namespace specd::host
