// The daemon's gRPC server on a Unix socket: Inference, Control and grpc.health.v1.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/engine.h"
#include "host/rpc/daemon_actions.h"

namespace specd::host {

class GrpcServer {
 public:
  // Serves `engine`, which outlives the server, on `socket_path`, which the caller has claimed. The
  // socket is open to its owner only. `options` are those of the engine, `actions` may be called until
  // shutdown(). Returns after a call of its own was answered.
  static Result<std::unique_ptr<GrpcServer>> start(Engine& engine, const std::string& socket_path,
                                                   const EngineOptions& options,
                                                   DaemonActions actions);
  ~GrpcServer();

  // [any] Health says NOT_SERVING and new prompts get UNAVAILABLE from now on. Prompts that wait
  // are still rendered, and other calls are answered.
  void start_drain();
  // [any] True when no prompt waits to be rendered or is being rendered; false at the timeout.
  bool wait_prompts(std::chrono::milliseconds timeout);
  // [any] Ends every running Generate with `reason`.
  void abort_streams(const Status& reason);
  // [any] Not ok while new connections cannot be accepted.
  Status door() const;
  // [control] Waits up to `flush` for clients to read the rest of their streams, then cancels every
  // call.
  void shutdown(std::chrono::milliseconds flush);

 private:
  GrpcServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
