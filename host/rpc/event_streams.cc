#include "host/rpc/event_streams.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "core/base/thread.h"
#include "host/rpc/calls.h"
#include "host/rpc/proto_text.h"
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
      bool has_memory = true;
      try {
        fill();
      } catch (const std::bad_alloc&) {
        has_memory = false;
      }
      is_writing_ = has_memory && message_.events_size() > 0;
      if (is_cancelled_) {
        is_writing_ = false;
        end = grpc::Status::CANCELLED;
      } else if (!has_memory) {
        end = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "");  // words take memory
      } else if (is_writing_) {
        after_ = message_.events(message_.events_size() - 1).number();
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
  void fill() SPECD_REQUIRES(mutex_) {
    message_.Clear();
    for (const EngineEvent& event : streams_.engine_.events(after_, kEventsPerMessage))
      *message_.add_events() = event_to_wire(event);
    make_utf8(message_);
  }

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
  const uint64_t last = engine_.wait_event(0, 0);
  if (request.after() > last)
    return new RefusedStream<v1::WatchEventsResponse>(status_to_wire(Status(
        Code::kFailedPrecondition, "after",
        "the last event is " + std::to_string(last) + ", found " + std::to_string(request.after()) +
            "; has the daemon been started again? Numbers begin with 1 then")));
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
  {
    const MutexLock lock(mutex_);
    std::erase(calls_, call);
  }
  changed_.notify_all();
}

bool EventStreams::wait_closed(std::chrono::milliseconds limit) {
  const auto end = CondVar::Clock::now() + limit;
  MutexLock lock(mutex_);
  while (!calls_.empty()) {
    if (!changed_.wait_until(lock, end)) return calls_.empty();
  }
  return true;
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
