#include "host/serve/session.h"

#include <algorithm>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "host/serve/sessions.h"

namespace specd::host {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{10};

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
          return kFrameBytes + each.tokens.size() * sizeof(int32_t) + each.text.size() +
                 each.logprobs.bytes();
        } else if constexpr (std::is_same_v<T, SessionPrompt>) {
          return kFrameBytes + each.logprobs.bytes();
        } else {
          return kFrameBytes;
        }
      },
      output);
}

// What an output takes in memory, nearly: most hold one token, so what is around it counts most.
size_t held_by(const SessionOutput& output) {
  constexpr size_t kBlockBytes = 32;  // the least that an allocator takes for the ids
  const auto* start = std::get_if<SessionStart>(&output);
  return sizeof output + kBlockBytes +
         (start == nullptr
              ? bytes_of(output)
              : start->prompt_tokens.size() * sizeof(int32_t) + start->prompt_text.size());
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
  const bool with_prompt = options.return_prompt_tokens;
  try {
    {
      const MutexLock lock(mutex_);
      id_ = request.id;
      client_ = options.client;
      texts_come_at_once_ = request.best_of > request.n;
    }
    Status status = sessions_.is_open();
    if (status.ok() && request.prompt_tokens.has_value()) return submit(request, with_prompt);
    if (status.ok()) status = check_and_queue(std::move(request), with_prompt);
    if (!status.ok()) refuse(std::move(status));
  } catch (const std::bad_alloc&) {
    sessions_.engine().count_refused();
    const MutexLock lock(mutex_);
    give_up_locked();
    sessions_.wake(shared_from_this());
  }
}

Status Session::check_and_queue(Request request, bool return_prompt_tokens) {
  SPECD_OK_OR_RETURN(sessions_.engine().check(request));
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

void Session::refuse(Status status) {
  sessions_.engine().count_refused();
  const MutexLock lock(mutex_);
  stage_ = Stage::kSubmitted;
  ended_ = true;
  if (end_status_.ok()) end_status_ = std::move(status);
  sessions_.wake(shared_from_this());
}

void Session::submit(const Request& request, bool return_prompt_tokens) {
  {
    const MutexLock lock(mutex_);
    if (stage_ != Stage::kWaiting) return;  // cancelled while it waited
    stage_ = Stage::kSubmitting;
  }
  try {
    Result<Ticket> ticket = sessions_.engine().submit(
        request, [self = shared_from_this()](const Event& event) { self->on_event(event); });
    const MutexLock lock(mutex_);
    stage_ = Stage::kSubmitted;
    if (ticket.ok()) {
      submitted_locked(std::move(ticket).value(), request, return_prompt_tokens);
    } else {
      ended_ = true;
      if (end_status_.ok()) end_status_ = ticket.status();
    }
    sessions_.wake(shared_from_this());
  } catch (const std::bad_alloc&) {
    const MutexLock lock(mutex_);
    stage_ = Stage::kSubmitted;
    if (number_ == 0) ended_ = true;
    give_up_locked();
    sessions_.wake(shared_from_this());
  }
}

void Session::submitted_locked(Ticket ticket, const Request& request, bool return_prompt_tokens) {
  number_ = ticket.number;
  id_ = ticket.id;
  if (muted_) return;
  SessionStart first{.request_id = std::move(ticket.id),
                     .route = sessions_.route_of(request),
                     .n_prompt_tokens = static_cast<int32_t>(ticket.prompt_tokens.size()),
                     .sampling = ticket.sampling,
                     .prompt_tokens = {},
                     .prompt_text = std::move(ticket.prompt_text)};
  if (return_prompt_tokens) first.prompt_tokens = std::move(ticket.prompt_tokens);
  buffer_.emplace_front(std::move(first));
  hold_locked(held_by(buffer_.front()));
}

void Session::push_locked(SessionOutput output) {
  if (muted_) return;
  buffer_.push_back(std::move(output));
  buffer_bytes_ += bytes_of(buffer_.back());
  hold_locked(held_by(buffer_.back()));
}

void Session::hold_locked(size_t bytes) {
  held_bytes_ += bytes;
  sessions_.unread_bytes_ += bytes;
}

void Session::drop_locked() {
  muted_ = true;
  if (stage_ == Stage::kWaiting) {  // submit() will return at once
    stage_ = Stage::kSubmitted;
    ended_ = true;
    sessions_.forget_prompt(prompt_number_);
  }
  sessions_.unread_bytes_ -= held_bytes_.exchange(0);
  buffer_.clear();
  buffer_bytes_ = 0;
  cancel_wanted_ = !ended_;
}

void Session::give_up_locked() {
  if (end_status_.ok()) end_status_ = std::move(no_memory_);
  drop_locked();
}

void Session::on_event(const Event& event) {
  const MutexLock lock(mutex_);
  if (event.done) ended_ = true;
  try {
    take_locked(event);
  } catch (const std::bad_alloc&) {
    give_up_locked();
  }
  sessions_.wake(shared_from_this());
}

void Session::take_locked(const Event& event) {
  if (!event.prompt_logprobs.token.empty()) push_locked(SessionPrompt{event.prompt_logprobs});
  if (!event.tokens.empty() || !event.text.empty()) {
    push_locked(
        SessionText{.index = event.index,
                    .tokens = event.tokens,
                    .text = event.text,
                    .logprobs = event.logprobs,
                    .finish = is_complete(event.finish) ? event.finish : FinishReason::kNone,
                    .stop = event.stop});
  }
  // The texts of best_of come one after another when the last one has ended: no client could have
  // read them in between.
  const bool could_read = !texts_come_at_once_ || event.tokens.empty();
  if (const size_t most = sessions_.buffer_bytes_max_; could_read && buffer_bytes_ > most) {
    end_status_ = Status(Code::kExhausted, "cancelled: the client left more than " +
                                               std::to_string(most) + " bytes unread");
    drop_locked();
  }
  if (!event.done) return;
  if (is_complete(event.finish)) {
    push_locked(SessionFinish{event.finish, event.usage});
  } else if (end_status_.ok()) {
    end_status_ = !event.error.ok() ? event.error
                  : event.finish == FinishReason::kCancelled
                      ? Status(Code::kCancelled, "cancelled")
                      : Status(Code::kInternal, "the request failed without a reason");
  }
}

void Session::cut_unread() {
  const MutexLock lock(mutex_);
  if (muted_) return;
  try {
    end_status_ = Status(Code::kExhausted, "cancelled: clients left more than " +
                                               std::to_string(sessions_.unread_bytes_max_) +
                                               " bytes unread in all, and this one the most");
  } catch (const std::bad_alloc&) {
    end_status_ = std::move(no_memory_);
  }
  drop_locked();
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
    held_bytes_ -= writing_bytes_;
    writing_ = true;
    lock.unlock();
    try {
      reader_.write(std::move(output));
    } catch (const std::bad_alloc&) {
      lock.lock();
      give_up_locked();
      lock.unlock();
      written();
    }
  } else if (ended_) {
    finished_ = true;
    Status status = std::move(end_status_);
    lock.unlock();
    try {
      reader_.end(status);
    } catch (const std::bad_alloc&) {  // the client must not wait for ever
      std::this_thread::sleep_for(kMemoryRetry);
      lock.lock();
      finished_ = false;
      end_status_ = std::move(status);
      sessions_.wake(shared_from_this());
    }
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

bool Session::cancel_own(const std::string& request_id, uint64_t client) {
  const MutexLock lock(mutex_);
  if (id_.empty() || id_ != request_id || client_ != client || ended_) return false;
  abort_locked(Status(Code::kCancelled, "the request was cancelled"));
  sessions_.wake(shared_from_this());
  return true;
}

bool Session::cancel_waiting(const std::string& request_id) {
  const MutexLock lock(mutex_);
  if (id_.empty() || id_ != request_id || stage_ == Stage::kSubmitted) return false;
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
