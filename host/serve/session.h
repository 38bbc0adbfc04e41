// A generation as its client sees it, whatever the transport.
//
//   auto session = sessions.open(reader);   // reader: what the transport implements
//   session->start(request, {});
//
// A session receives the engine's events on the step thread without blocking it, and passes them to
// the reader one at a time, at the client's pace. It ends exactly once. A transport writes what it
// receives and reports when the client disconnects.
//
// The buffer of unread output is bounded: past Sessions::kBufferBytesMax, the SessionStart not
// counted, the request is cancelled and the session ends with kExhausted. So does the session with
// the most unread output past kUnreadBytesMax of all sessions, and one for which there is not enough
// memory.
#pragma once

#include <atomic>
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
#include "host/base/out_of_memory.h"

namespace specd::host {

class Sessions;

// What a session writes to its reader: one SessionStart, any number of SessionPrompt, any number of
// SessionText, and one SessionFinish when the text is complete.
struct SessionStart {
  std::string request_id, route;
  int32_t n_prompt_tokens = 0;
  SamplingParams sampling;             // complete, the model's defaults included
  std::vector<int32_t> prompt_tokens;  // when asked for
  std::string prompt_text;             // when asked for
};
struct SessionPrompt {
  Logprobs logprobs;  // of the next tokens of the prompt, from the second on
};
struct SessionText {
  int32_t index = 0;  // of the choice
  std::vector<int32_t> tokens;
  std::string text;                           // whole characters; may lag behind the ids
  Logprobs logprobs;                          // of `tokens`, when asked for
  FinishReason finish = FinishReason::kNone;  // in the last one of a choice
  int32_t stop = -1;  // with kStop: which of Request::stop it was; -1 = a token
};
struct SessionFinish {
  // kStop or kLength, of the choice that ended last; with best_of, of the last one sent.
  FinishReason reason = FinishReason::kStop;
  Usage usage;
};
using SessionOutput = std::variant<SessionStart, SessionPrompt, SessionText, SessionFinish>;

// Implemented by a transport. Both are called on the thread of Sessions and must not block. One that
// throws std::bad_alloc has done nothing.
class SessionReader {
 public:
  // Starts writing `output`. The next one comes after Session::written().
  virtual void write(SessionOutput output) = 0;
  // The end: ok after a SessionFinish, else why there is none. Called once, while no write is
  // under way, and again if it has thrown; the session does not touch the reader afterwards.
  virtual void end(const Status& status) = 0;

 protected:
  ~SessionReader() = default;
};

struct SessionOptions {
  uint64_t client = 0;  // whose request it is: see Sessions::cancel()
  bool return_prompt_tokens = false;
  // How long the caller waits for the whole answer. Replaces a later deadline of the request.
  std::optional<std::chrono::milliseconds> time_left = {};
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // [any] Once. A prompt in ids is submitted here; text and chats wait in the prompt queue. A
  // refusal ends the session.
  void start(Request request, const SessionOptions& options);
  // [any] The reader has finished its last write().
  void written();
  // [any] The client disconnected: nothing more is written, the request is cancelled, and end()
  // follows.
  void disconnect();
  // [any] The transport no longer uses this session. REQUIRES that end() was called.
  void close();

 private:
  friend class Sessions;
  // Where the request is. The engine's events, the last one included, may come before submit()
  // returns; nothing is written before kSubmitted, so SessionStart always comes first.
  enum class Stage { kWaiting, kSubmitting, kSubmitted };

  Session(Sessions& sessions, SessionReader& reader) : sessions_(sessions), reader_(reader) {}
  Status check_and_queue(Request request, bool return_prompt_tokens);
  void submit(const Request& request, bool return_prompt_tokens);
  void submitted_locked(Ticket ticket, const Request& request, bool return_prompt_tokens)
      SPECD_REQUIRES(mutex_);
  void refuse(Status status);
  void on_event(const Event& event);  // [step thread]
  // [any] Cancels the request; the session ends with `reason`, unless its end is already known.
  void abort(const Status& reason);
  // [any] Cancels the request and returns true if it has this id, is of this client and has not ended. One to which
  // the client gave no id has the engine's, once the engine has it.
  bool cancel_own(const std::string& request_id, uint64_t client);
  // [any] Aborts and returns true if the client gave the request this id and the engine does not
  // have it yet.
  bool cancel_waiting(const std::string& request_id);
  void cut_unread();  // [thread of Sessions] all sessions together left too much unread
  void pump();        // [thread of Sessions] starts the next write, or ends the session

  void take_locked(const Event& event) SPECD_REQUIRES(mutex_);
  void push_locked(SessionOutput output) SPECD_REQUIRES(mutex_);
  void hold_locked(size_t bytes) SPECD_REQUIRES(mutex_);
  void drop_locked() SPECD_REQUIRES(mutex_);
  void abort_locked(const Status& reason) SPECD_REQUIRES(mutex_);
  // Ends the session for want of memory, and needs none.
  void give_up_locked() SPECD_REQUIRES(mutex_);

  Sessions& sessions_;
  SessionReader& reader_;

  // Also held while calling Sessions::wake(): once another thread sees that the session has ended,
  // Sessions may be destroyed.
  Mutex mutex_;
  std::string id_ SPECD_GUARDED_BY(mutex_);  // the wished one, or the engine's
  uint64_t client_ SPECD_GUARDED_BY(mutex_) = 0;
  uint64_t prompt_number_ SPECD_GUARDED_BY(mutex_) = 0;  // in the prompt queue
  bool texts_come_at_once_ SPECD_GUARDED_BY(mutex_) = false;
  std::deque<SessionOutput> buffer_ SPECD_GUARDED_BY(mutex_);
  size_t buffer_bytes_ SPECD_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> held_bytes_{0};  // what buffer_ takes in memory; changed under mutex_
  uint64_t number_ SPECD_GUARDED_BY(mutex_) = 0;  // of the request in the engine; 0 = not there
  Status end_status_ SPECD_GUARDED_BY(mutex_);
  Status no_memory_ SPECD_GUARDED_BY(mutex_) = no_memory();  // made while there is some
  Stage stage_ SPECD_GUARDED_BY(mutex_) = Stage::kWaiting;
  bool muted_ SPECD_GUARDED_BY(mutex_) = false;          // nothing more is written
  bool cancel_wanted_ SPECD_GUARDED_BY(mutex_) = false;  // pump() must cancel the request
  bool ended_ SPECD_GUARDED_BY(mutex_) = false;    // the last event came, or there will be none
  bool writing_ SPECD_GUARDED_BY(mutex_) = false;  // the reader has an output
  size_t writing_bytes_ SPECD_GUARDED_BY(mutex_) = 0;
  bool finished_ SPECD_GUARDED_BY(mutex_) = false;  // end() was called

  // The list of Sessions::wake(), guarded by its mutex.
  bool is_ready_ = false;
  std::shared_ptr<Session> next_ready_;
};

}  // namespace specd::host
