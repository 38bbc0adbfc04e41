// The daemon's gRPC servers: Inference, Control and grpc.health.v1 on one Unix socket or on two, and over TCP. Behind
// each of these doors every user has a server, with that user's rights (caller.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"
#include "host/config/config.h"
#include "host/rpc/daemon_actions.h"
#include "host/rpc/tls.h"
#include "host/serve/sessions.h"

namespace specd::host {

class GrpcServer {
 public:
  // Serves `engine` and `sessions`, which outlive the server, on the sockets of `config`, which the caller has claimed. They
  // are open to the user of the daemon, who has every right unless `users` lists it, to root likewise, and to
  // those users; its port to users with a certificate. `tls`: the keys where the port has some, and
  // outlives the server. `actions` may be called until shutdown(). Returns after calls of its own were answered.
  static Result<std::unique_ptr<GrpcServer>> start(Engine& engine, Sessions& sessions,
                                                   const Config& config, DaemonActions actions,
                                                   const TlsKeys* tls = nullptr);
  ~GrpcServer();

  // [any] Health says NOT_SERVING from now on; calls are answered.
  void start_drain();
  // Where it serves: "unix:/run/specd/specd.sock", "127.0.0.1:8443".
  std::vector<std::string> addresses() const;
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
