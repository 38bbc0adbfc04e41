// A generation as its client sees it, whatever the transport.
//
//   auto session = sessions.open(reader);   // reader: what the transport implements
//   session->start(request, {});
//
// A session takes the engine's events on the step thread and never blocks it. It gives them to the
// reader one at a time, at the client's pace, and ends exactly once. A transport only writes what
// it is given and says when the client has gone.
//
// Bounded: what the client has not read yet waits here. Past Sessions::kBufferBytesMax the request
// is cancelled and the session ends with kExhausted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/engine.h"

namespace specd::host {

class Sessions;

// What a session gives its reader: one SessionStart, any number of SessionText, and one
// SessionFinish when the text is complete.
struct SessionStart {
  std::string request_id, route;
  SamplingParams sampling;             // complete, the model's defaults included
  std::vector<int32_t> prompt_tokens;  // when asked for
};
struct SessionText {
  std::vector<int32_t> tokens;
  std::string text;  // whole characters; may lag behind the ids
};
struct SessionFinish {
  FinishReason reason = FinishReason::kStop;  // or kLength
  Usage usage;
};
using SessionOutput = std::variant<SessionStart, SessionText, SessionFinish>;

// Implemented by a transport. Both are called on the thread of Sessions and must not block.
class SessionReader {
 public:
  // Starts writing `output`. The next one comes after Session::written().
  virtual void write(SessionOutput output) = 0;
  // The end: ok after a SessionFinish, else why there is none. Called once, while no write is
  // under way; the session does not touch the reader afterwards.
  virtual void end(const Status& status) = 0;

 protected:
  ~SessionReader() = default;
};

struct SessionOptions {
  bool return_prompt_tokens = false;
  // How long the caller waits for the whole; a request whose deadline is later gets this one.
  std::optional<std::chrono::milliseconds> time_left;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // [any] Once. A prompt in ids is submitted here; text and chats wait in the prompt queue. What
  // is refused ends the session.
  void start(Request request, const SessionOptions& options);
  // [any] The reader has written what it got last.
  void written();
  // [any] The client has gone: nothing more is written and the request is cancelled. end() follows.
  void disconnect();
  // [any] The transport is through with this session. REQUIRES that end() was called.
  void close();

 private:
  friend class Sessions;
  // Where the request is. The engine's events, the last one included, may come before submit()
  // returns; nothing is written before kSubmitted, so SessionStart always comes first.
  enum class Stage { kWaiting, kSubmitting, kSubmitted };

  Session(Sessions& sessions, SessionReader& reader) : sessions_(sessions), reader_(reader) {}
  void submit(const Request& request, bool return_prompt_tokens);
  void refuse(const Status& status);
  void on_event(const Event& event);  // [step thread]
  // [any] Cancels the request; the session ends with `reason`, unless its end is known already.
  void abort(const Status& reason);
  // [any] abort() if `request_id` is what the client called it and the engine does not have it yet;
  // true if so.
  bool cancel_waiting(const std::string& request_id);
  void pump();  // [thread of Sessions] starts the next write, or ends the session

  void push_locked(SessionOutput output) SPECD_REQUIRES(mutex_);
  void drop_locked() SPECD_REQUIRES(mutex_);
  void abort_locked(const Status& reason) SPECD_REQUIRES(mutex_);

  Sessions& sessions_;
  SessionReader& reader_;

  // Also held while Sessions is woken: once a session was seen to have ended, it may be destroyed, and
  // then Sessions.
  Mutex mutex_;
  std::string wished_id_ SPECD_GUARDED_BY(mutex_);
  std::deque<SessionOutput> buffer_ SPECD_GUARDED_BY(mutex_);
  size_t buffer_bytes_ SPECD_GUARDED_BY(mutex_) = 0;
  uint64_t number_ SPECD_GUARDED_BY(mutex_) = 0;  // of the request in the engine
  Status end_status_ SPECD_GUARDED_BY(mutex_);
  Stage stage_ SPECD_GUARDED_BY(mutex_) = Stage::kWaiting;
  bool muted_ SPECD_GUARDED_BY(mutex_) = false;          // nothing more is written
  bool cancel_wanted_ SPECD_GUARDED_BY(mutex_) = false;  // pump() is to cancel the request
  bool ended_ SPECD_GUARDED_BY(mutex_) = false;     // the last event came, or there will be none
  bool writing_ SPECD_GUARDED_BY(mutex_) = false;   // the reader has an output
  bool finished_ SPECD_GUARDED_BY(mutex_) = false;  // end() was called
};

}  // namespace specd::host
