// The calls of WatchEvents. One thread waits for events and wakes the calls; each reads what it has not sent
// from the engine once its last write is done, so that a slow reader holds up nobody and takes no memory.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/proto/specd.grpc.pb.h"

namespace specd::host {

class EventStreams {
 public:
  static constexpr size_t kCallsMax = 32;

  explicit EventStreams(Engine& engine);  // outlives it
  // REQUIRES that no call is open.
  ~EventStreams();

  // [any] The reactor deletes itself. kExhausted, to the client, when there are kCallsMax calls.
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* open(const v1::WatchEventsRequest& request);
  // [any] Ends open calls, and later ones at once, with kUnavailable.
  void end();
  // [any] Waits until no call is open; false at the timeout.
  bool wait_closed(std::chrono::milliseconds limit);

 private:
  class Call;
  void run();
  void forget(Call* call);

  Engine& engine_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Call*> calls_ SPECD_GUARDED_BY(mutex_);
  bool ending_ SPECD_GUARDED_BY(mutex_) = false, stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace specd::host
