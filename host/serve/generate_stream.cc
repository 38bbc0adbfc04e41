#include "host/serve/generate_stream.h"

#include <utility>
#include <vector>

#include "host/rpc/wire.h"

namespace specd::host {

StreamPump::StreamPump() : thread_([this] { run(); }) {}

StreamPump::~StreamPump() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StreamPump::wake(std::shared_ptr<GenerateStream> stream) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(stream));
  }
  changed_.notify_one();
}

void StreamPump::add(GenerateStream* stream) {
  const std::lock_guard lock(mutex_);
  live_.insert(stream);
}

void StreamPump::remove(GenerateStream* stream) {
  const std::lock_guard lock(mutex_);
  live_.erase(stream);
  if (live_.empty()) emptied_.notify_all();
}

bool StreamPump::wait_empty(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_for(lock, timeout, [this] { return live_.empty(); });
}

std::vector<std::shared_ptr<GenerateStream>> StreamPump::live() {
  std::vector<std::shared_ptr<GenerateStream>> streams;
  const std::lock_guard lock(mutex_);
  // A stream leaves live_ before it lets go of itself, and that needs this lock.
  for (GenerateStream* stream : live_) streams.push_back(stream->shared_from_this());
  return streams;
}

void StreamPump::abort_all(const Status& reason) {
  for (const auto& stream : live()) stream->abort(reason);
}

bool StreamPump::cancel_waiting(const std::string& request_id) {
  bool found = false;
  for (const auto& stream : live()) found |= stream->cancel_waiting(request_id);
  return found;
}

void StreamPump::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !ready_.empty(); });
    if (ready_.empty()) return;
    std::shared_ptr<GenerateStream> stream = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    stream->pump();
    stream.reset();
    lock.lock();
  }
}

std::shared_ptr<GenerateStream> GenerateStream::make(Engine& engine, StreamPump& pump,
                                                     std::string wished_id) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(engine, pump, std::move(wished_id)));
  stream->self_ = stream;
  pump.add(stream.get());
  return stream;
}

void GenerateStream::refuse(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    begun_ = true;
    submitted_ = true;
    ended_ = true;
    if (end_status_.ok()) end_status_ = status;
  }
  pump_.wake(shared_from_this());
}

void GenerateStream::begin(const Request& request, const std::string& route,
                           bool return_prompt_ids) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(begun_, true)) return;  // it was cancelled before
  }
  v1::GenerateResponse started;
  started.mutable_started()->set_route(route);
  Result<Ticket> ticket = engine_.submit(
      request, [self = shared_from_this()](const Event& event) { self->on_event(event); });
  {
    const std::lock_guard lock(mutex_);
    submitted_ = true;
    if (ticket.ok()) {
      request_id_ = ticket.value().id;
      number_ = ticket.value().number;
      started.mutable_started()->set_request_id(request_id_);
      *started.mutable_started()->mutable_sampling() = sampling_to_wire(ticket.value().sampling);
      if (return_prompt_ids)
        started.mutable_started()->mutable_prompt_token_ids()->Add(
            ticket.value().prompt_tokens.begin(), ticket.value().prompt_tokens.end());
      // Events may have come before submit() returned, the last one as well.
      for (v1::GenerateResponse& message : waiting_) {
        if (message.has_finished()) message.mutable_finished()->set_request_id(request_id_);
      }
      if (!muted_) {
        waiting_bytes_ += started.ByteSizeLong();
        waiting_.push_front(std::move(started));
      }
    } else {
      if (end_status_.ok()) end_status_ = with_wire_field(ticket.status());
      ended_ = true;
    }
  }
  pump_.wake(shared_from_this());
}

void GenerateStream::push_locked(v1::GenerateResponse message) {
  if (muted_) return;
  waiting_bytes_ += message.ByteSizeLong();
  waiting_.push_back(std::move(message));
}

void GenerateStream::drop_locked() {
  muted_ = true;
  if (!std::exchange(begun_, true)) {  // it waits, and need not any more
    submitted_ = true;
    ended_ = true;
    if (end_status_.ok()) end_status_ = Status(Code::kCancelled, "cancelled");
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  cancel_wanted_ = !ended_;
}

void GenerateStream::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (!event.tokens.empty() || !event.text.empty()) {
    v1::GenerateResponse message;
    v1::Chunk& chunk = *message.mutable_chunk();
    chunk.mutable_token_ids()->Add(event.tokens.begin(), event.tokens.end());
    chunk.set_text(event.text);
    push_locked(std::move(message));
  }
  if (waiting_bytes_ > kBufferBytesMax) {
    end_status_ = Status(Code::kExhausted, "cancelled: the client left more than " +
                                               std::to_string(kBufferBytesMax) + " bytes unread");
    drop_locked();
  }
  if (event.done) {
    ended_ = true;
    const bool completed =
        event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    if (completed && !muted_) {
      v1::GenerateResponse message;
      *message.mutable_finished() = finished_to_wire(request_id_, event);
      push_locked(std::move(message));
    } else if (end_status_.ok() && !completed) {
      end_status_ = !event.error.ok() ? event.error
                    : event.finish == FinishReason::kCancelled
                        ? Status(Code::kCancelled, "cancelled")
                        : Status(Code::kInternal, "the request failed without a reason");
    }
  }
  // Under the lock: once ended_ is seen the stream, and then the pump, may go.
  pump_.wake(shared_from_this());
}

void GenerateStream::pump() {
  std::unique_lock lock(mutex_);
  if (!submitted_) return;  // begin() wakes again
  if (std::exchange(cancel_wanted_, false) && !ended_) {
    // Here and not in on_event(): the sink must not call the engine.
    engine_.cancel(number_);
  }
  if (write_started_ || finished_) return;
  if (!waiting_.empty()) {
    writing_ = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= writing_.ByteSizeLong();
    write_started_ = true;
    lock.unlock();
    StartWrite(&writing_);
  } else if (ended_) {
    finished_ = true;
    const grpc::Status status = status_to_wire(end_status_);
    lock.unlock();
    Finish(status);
  }
}

void GenerateStream::abort_locked(const Status& reason) {
  if (ended_ || muted_) return;
  end_status_ = reason;
  drop_locked();
}

void GenerateStream::abort(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    abort_locked(reason);
  }
  pump_.wake(shared_from_this());
}

bool GenerateStream::cancel_waiting(const std::string& request_id) {
  if (wished_id_.empty() || wished_id_ != request_id) return false;
  {
    const std::lock_guard lock(mutex_);
    if (submitted_) return false;
    abort_locked(Status(Code::kCancelled, "the request was cancelled"));
  }
  pump_.wake(shared_from_this());
  return true;
}

void GenerateStream::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    write_started_ = false;
    if (!ok) drop_locked();
  }
  pump_.wake(shared_from_this());
}

// The client hung up. What runs is ended by the engine's last event, which still comes.
void GenerateStream::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    drop_locked();
  }
  pump_.wake(shared_from_this());
}

void GenerateStream::OnDone() {
  pump_.remove(this);
  const std::shared_ptr<GenerateStream> last = std::move(self_);
}

}  // namespace specd::host
