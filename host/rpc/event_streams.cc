#include "host/rpc/event_streams.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/thread.h"
#include "host/rpc/proto_text.h"
#include "host/rpc/calls.h"
#include "host/rpc/wire.h"

namespace specd::host {
namespace {

constexpr size_t kEventsPerMessage = 64;
constexpr uint64_t kWaitMs = 250;  // until the thread looks whether it is to stop

}  // namespace

class EventStreams::Call final : public grpc::ServerWriteReactor<v1::WatchEventsResponse> {
 public:
  Call(EventStreams& streams, const v1::WatchEventsRequest& request)
      : streams_(streams), after_(request.after()), follows_(request.follow()) {}

  // [any] Writes, or ends, what there is to write or to end. REQUIRES that the call is open, or is about to
  // be: after this it may be gone.
  void go_on() {
    std::optional<grpc::Status> end;
    {
      const MutexLock lock(mutex_);
      if (is_writing_ || has_ended_) return;
      message_.Clear();
      if (!is_cancelled_) {
        for (const EngineEvent& event : streams_.engine_.events(after_, kEventsPerMessage))
          *message_.add_events() = event_to_wire(event);
      }
      is_writing_ = message_.events_size() > 0;
      if (is_writing_) {
        after_ = message_.events(message_.events_size() - 1).number();
        make_utf8(message_);
      } else if (is_cancelled_) {
        end = grpc::Status::CANCELLED;
      } else if (is_ending_) {
        end = status_to_wire(Status(Code::kUnavailable, "specd stops"));
      } else if (!follows_) {
        end = grpc::Status::OK;
      } else {
        return;
      }
      has_ended_ = end.has_value();
    }
    // Not under the lock: gRPC may call back before these return.
    if (end.has_value()) {
      Finish(*end);
    } else {
      StartWrite(&message_);
    }
  }
  void end() {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }

  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(mutex_);
      is_writing_ = false;
      is_cancelled_ = is_cancelled_ || !ok;
    }
    go_on();
  }
  void OnCancel() override {
    {
      const MutexLock lock(mutex_);
      is_cancelled_ = true;
    }
    go_on();
  }
  void OnDone() override {
    streams_.forget(this);
    delete this;
  }

 private:
  EventStreams& streams_;
  Mutex mutex_;
  uint64_t after_ SPECD_GUARDED_BY(mutex_);
  const bool follows_;
  bool is_writing_ SPECD_GUARDED_BY(mutex_) = false, has_ended_ SPECD_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ SPECD_GUARDED_BY(mutex_) = false, is_ending_ SPECD_GUARDED_BY(mutex_) = false;
  v1::WatchEventsResponse message_;  // borrowed by gRPC while is_writing_
};

EventStreams::EventStreams(Engine& engine) : engine_(engine) {
  thread_ = start_thread("specd-events", [this] { run(); });
}

EventStreams::~EventStreams() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

grpc::ServerWriteReactor<v1::WatchEventsResponse>* EventStreams::open(
    const v1::WatchEventsRequest& request) {
  const MutexLock lock(mutex_);
  if (calls_.size() >= kCallsMax)
    return new RefusedStream<v1::WatchEventsResponse>(status_to_wire(
        Status(Code::kExhausted, std::to_string(kCallsMax) + " calls watch events already")));
  calls_.reserve(calls_.size() + 1);
  auto* const call = new Call(*this, request);
  calls_.push_back(call);
  if (ending_) call->end();
  changed_.notify_all();
  call->go_on();
  return call;  // gRPC has not seen it yet, so OnDone cannot have run
}

void EventStreams::end() {
  const MutexLock lock(mutex_);
  ending_ = true;
  for (Call* const call : calls_) {
    call->end();
    call->go_on();
  }
}

void EventStreams::forget(Call* call) {
  const MutexLock lock(mutex_);
  std::erase(calls_, call);
}

void EventStreams::run() {
  uint64_t seen = 0;
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (calls_.empty()) {
      changed_.wait(lock);
      continue;
    }
    // A call that is done waits for the lock before it goes.
    for (Call* const call : calls_) call->go_on();
    lock.unlock();
    seen = engine_.wait_event(seen, kWaitMs);
    lock.lock();
  }
}

}  // namespace specd::host
