// The daemon's gRPC face on a Unix socket: Inference, Control and grpc.health.v1.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/engine.h"

namespace specd::host {

class GrpcServer {
 public:
  // Serves `engine`, which outlives the server, on `socket_path`, which the caller has claimed. The
  // socket is open to its owner only. `options` are those of the engine.
  static Result<std::unique_ptr<GrpcServer>> start(Engine& engine, const std::string& socket_path,
                                                   const EngineOptions& options);
  ~GrpcServer();

  // [any] Health says NOT_SERVING from now on; calls are still answered.
  void set_not_serving();
  // [any] Ends every running Generate with `reason`.
  void abort_streams(const Status& reason);
  // [control] Gives clients `flush` to take what their streams still hold, then cuts every call.
  void shutdown(std::chrono::milliseconds flush);

 private:
  GrpcServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
