// One running Generate call: takes the engine's events on the step thread, without blocking it, and
// writes them to the client at the client's pace.
//
// Bounded: events a slow client has not taken wait here; past kBufferBytesMax the request is
// cancelled and the stream ends with RESOURCE_EXHAUSTED. A client that hangs up cancels the
// request.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "host/proto/specd.grpc.pb.h"

namespace specd::host {

class GenerateStream;

// The live streams, and the thread that starts their writes, so that the step thread never touches
// a socket.
class StreamPump {
 public:
  StreamPump();
  ~StreamPump();  // REQUIRES every stream to have ended
  StreamPump(const StreamPump&) = delete;
  StreamPump& operator=(const StreamPump&) = delete;

  // [any] The stream has something to write or to end.
  void wake(std::shared_ptr<GenerateStream> stream);
  void add(GenerateStream* stream);
  void remove(GenerateStream* stream);
  // [any] Cancels what still runs; each stream ends with `reason`.
  void abort_all(const Status& reason);
  // [any] Cancels the requests of this id that the engine does not have yet; false: there are none.
  bool cancel_waiting(const std::string& request_id);
  // [any] True when the last stream is done with; false at the timeout.
  bool wait_empty(std::chrono::milliseconds timeout);

 private:
  void run();
  std::vector<std::shared_ptr<GenerateStream>> live();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable emptied_;
  std::deque<std::shared_ptr<GenerateStream>> ready_;
  std::unordered_set<GenerateStream*> live_;
  bool stopping_ = false;
  std::thread thread_;
};

class GenerateStream : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                       public std::enable_shared_from_this<GenerateStream> {
 public:
  static constexpr size_t kBufferBytesMax = 1 << 20;

  // A stream that owns itself until gRPC is done with it. begin() or refuse() follows, once.
  // `wished_id` is the client's, or empty.
  static std::shared_ptr<GenerateStream> make(Engine& engine, StreamPump& pump,
                                              std::string wished_id);
  // [any] Makes ids of the prompt and submits the request, unless the stream has ended already.
  void begin(const Request& request, const std::string& route, bool return_prompt_ids);
  void refuse(const Status& status);  // [any] ends the stream
  // [any] abort() when the id is the wished one and the engine does not have the request yet; true
  // when it was.
  bool cancel_waiting(const std::string& request_id);

  void on_event(const Event& event);  // [step thread]
  void pump();                        // [pump thread] starts the next write, or ends the stream
  void abort(const Status& reason);   // [any] cancels the request; the stream ends with `reason`

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateStream(Engine& engine, StreamPump& pump, std::string wished_id)
      : engine_(engine), pump_(pump), wished_id_(std::move(wished_id)) {}
  void push_locked(v1::GenerateResponse message);
  void drop_locked();
  void abort_locked(const Status& reason);

  Engine& engine_;
  StreamPump& pump_;
  const std::string wished_id_;
  std::shared_ptr<GenerateStream> self_;  // until OnDone

  std::mutex mutex_;
  std::deque<v1::GenerateResponse> waiting_;
  size_t waiting_bytes_ = 0;
  v1::GenerateResponse writing_;  // borrowed by gRPC while write_started_
  std::string request_id_;
  uint64_t number_ = 0;  // the engine's, of the request
  Status end_status_;
  bool begun_ = false;      // begin() is at work, or there is nothing left for it to do
  bool submitted_ = false;  // Started is in front; nothing is written before
  bool write_started_ = false;
  bool muted_ = false;          // the client is gone or the request was given up: write no more
  bool cancel_wanted_ = false;  // pump() shall cancel the request
  bool ended_ = false;          // the engine sent its last event
  bool finished_ = false;       // Finish was called
};

}  // namespace specd::host
