#include "host/serve/session.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "host/base/out_of_memory.h"
#include "host/serve/sessions.h"

namespace specd::host {
namespace {

// What an output counts against the bound: its approximate size on a wire. A start counts nothing:
// it is there before the first event, so a long prompt would be cancelled before its client had a
// chance to read.
size_t bytes_of(const SessionOutput& output) {
  constexpr size_t kFrameBytes = 8;
  return std::visit(
      [](const auto& each) -> size_t {
        using T = std::decay_t<decltype(each)>;
        if constexpr (std::is_same_v<T, SessionStart>) {
          return 0;
        } else if constexpr (std::is_same_v<T, SessionText>) {
          return kFrameBytes + each.tokens.size() * sizeof(int32_t) + each.text.size();
        } else {
          return kFrameBytes;
        }
      },
      output);
}

// What an output takes in memory, nearly.
size_t held_by(const SessionOutput& output) {
  const auto* start = std::get_if<SessionStart>(&output);
  return start == nullptr ? bytes_of(output) : start->prompt_tokens.size() * sizeof(int32_t);
}

// The engine need not work longer than the caller waits.
void apply_time_left(std::chrono::milliseconds left, Request& request) {
  const int64_t left_ms = std::max<int64_t>(left.count(), 1);
  if (left_ms > EngineLimits::kDeadlineMs) return;
  // Keep a deadline that is out of range: the engine refuses it.
  if (request.deadline_ms == 0 ||
      (left_ms < request.deadline_ms && request.deadline_ms <= EngineLimits::kDeadlineMs))
    request.deadline_ms = left_ms;
}

}  // namespace

void Session::start(Request request, const SessionOptions& options) {
  request.arrived_ns = now_ns();
  if (options.time_left.has_value()) apply_time_left(*options.time_left, request);
  {
    const MutexLock lock(mutex_);
    wished_id_ = request.id;
  }
  const bool with_prompt = options.return_prompt_tokens;
  Status status = sessions_.is_open();
  if (status.ok() && request.prompt_tokens.has_value()) return submit(request, with_prompt);
  if (status.ok()) {
    status = within_memory([&]() -> Status {
      SPECD_OK_OR_RETURN(sessions_.engine().check(request));
      return queue(std::move(request), with_prompt);
    });
  }
  if (status.ok()) return;
  sessions_.engine().count_refused();
  refuse(status);
}

Status Session::queue(Request request, bool return_prompt_tokens) {
  // Shared: std::function copies what it holds.
  const auto kept = std::make_shared<const Request>(std::move(request));
  SPECD_TRY(const uint64_t number,
            sessions_.queue(*kept, [self = shared_from_this(), kept, return_prompt_tokens] {
              self->submit(*kept, return_prompt_tokens);
            }));
  const MutexLock lock(mutex_);
  prompt_number_ = number;
  if (stage_ != Stage::kWaiting) sessions_.forget_prompt(number);  // cancelled just now
  return Status();
}

void Session::refuse(const Status& status) {
  const MutexLock lock(mutex_);
  stage_ = Stage::kSubmitted;
  ended_ = true;
  if (end_status_.ok()) end_status_ = status;
  sessions_.wake(shared_from_this());
}

void Session::submit(const Request& request, bool return_prompt_tokens) {
  {
    const MutexLock lock(mutex_);
    if (stage_ != Stage::kWaiting) return;  // cancelled while it waited
    stage_ = Stage::kSubmitting;
  }
  Result<Ticket> ticket = within_memory([&] {
    return sessions_.engine().submit(
        request, [self = shared_from_this()](const Event& event) { self->on_event(event); });
  });
  const MutexLock lock(mutex_);
  stage_ = Stage::kSubmitted;
  if (ticket.ok()) {
    Ticket& made = ticket.value();
    number_ = made.number;
    if (!muted_) {
      SessionStart first{.request_id = std::move(made.id),
                         .route = sessions_.route_of(request),
                         .sampling = made.sampling,
                         .prompt_tokens = {}};
      if (return_prompt_tokens) first.prompt_tokens = std::move(made.prompt_tokens);
      buffer_.emplace_front(std::move(first));
      sessions_.unread_bytes_ += held_by(buffer_.front());
      check_unread_locked();
    }
  } else {
    if (end_status_.ok()) end_status_ = ticket.status();
    ended_ = true;
  }
  sessions_.wake(shared_from_this());
}

void Session::push_locked(SessionOutput output) {
  if (muted_) return;
  buffer_bytes_ += bytes_of(output);
  sessions_.unread_bytes_ += held_by(output);
  buffer_.push_back(std::move(output));
}

void Session::check_unread_locked() {
  if (sessions_.unread_bytes_ <= Sessions::kUnreadBytesMax || muted_) return;
  end_status_ = Status(Code::kExhausted, "cancelled: clients left more than " +
                                             std::to_string(Sessions::kUnreadBytesMax) +
                                             " bytes unread in all");
  drop_locked();
}

void Session::drop_locked() {
  muted_ = true;
  if (stage_ == Stage::kWaiting) {  // submit() will return at once
    stage_ = Stage::kSubmitted;
    ended_ = true;
    sessions_.forget_prompt(prompt_number_);
  }
  for (const SessionOutput& each : buffer_) sessions_.unread_bytes_ -= held_by(each);
  buffer_.clear();
  buffer_bytes_ = 0;
  cancel_wanted_ = !ended_;
}

void Session::on_event(const Event& event) {
  const MutexLock lock(mutex_);
  if (!event.tokens.empty() || !event.text.empty())
    push_locked(SessionText{event.tokens, event.text});
  if (const size_t most = sessions_.buffer_bytes_max_; buffer_bytes_ > most) {
    end_status_ = Status(Code::kExhausted, "cancelled: the client left more than " +
                                               std::to_string(most) + " bytes unread");
    drop_locked();
  }
  check_unread_locked();
  if (event.done) {
    ended_ = true;
    const bool completed =
        event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    if (completed) {
      push_locked(SessionFinish{event.finish, event.usage});
    } else if (end_status_.ok()) {
      end_status_ = !event.error.ok() ? event.error
                    : event.finish == FinishReason::kCancelled
                        ? Status(Code::kCancelled, "cancelled")
                        : Status(Code::kInternal, "the request failed without a reason");
    }
  }
  sessions_.wake(shared_from_this());
}

void Session::pump() {
  MutexLock lock(mutex_);
  if (stage_ != Stage::kSubmitted) return;  // submit() wakes again
  if (std::exchange(cancel_wanted_, false) && !ended_) {
    // Here and not in on_event(): a sink must not call the engine.
    sessions_.engine().cancel(number_);
  }
  if (writing_ || finished_) return;
  if (!buffer_.empty()) {
    SessionOutput output = std::move(buffer_.front());
    buffer_.pop_front();
    buffer_bytes_ -= bytes_of(output);
    writing_bytes_ = held_by(output);
    writing_ = true;
    lock.unlock();
    reader_.write(std::move(output));
  } else if (ended_) {
    finished_ = true;
    const Status status = end_status_;
    lock.unlock();
    reader_.end(status);
  }
}

void Session::abort_locked(const Status& reason) {
  if (ended_ || muted_) return;
  end_status_ = reason;
  drop_locked();
}

void Session::abort(const Status& reason) {
  const MutexLock lock(mutex_);
  abort_locked(reason);
  sessions_.wake(shared_from_this());
}

bool Session::cancel_waiting(const std::string& request_id) {
  const MutexLock lock(mutex_);
  if (wished_id_.empty() || wished_id_ != request_id || stage_ == Stage::kSubmitted) return false;
  abort_locked(Status(Code::kCancelled, "the request was cancelled"));
  sessions_.wake(shared_from_this());
  return true;
}

void Session::written() {
  const MutexLock lock(mutex_);
  writing_ = false;
  sessions_.unread_bytes_ -= std::exchange(writing_bytes_, 0);
  sessions_.wake(shared_from_this());
}

void Session::disconnect() {
  const MutexLock lock(mutex_);
  if (end_status_.ok()) end_status_ = Status(Code::kCancelled, "cancelled");
  drop_locked();
  sessions_.wake(shared_from_this());
}

void Session::close() {
  {
    const MutexLock lock(mutex_);
    SPECD_CHECK(finished_, "a session was closed before its end");
  }
  sessions_.remove(this);
}

}  // namespace specd::host
