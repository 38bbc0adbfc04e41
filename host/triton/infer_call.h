// One inference for a client of Triton's: a session, and the responses that come of it.
//
//   session --outputs--> InferCall --outputs by name--> InferSink
//                     [thread of Sessions]              HTTP, or gRPC
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/serve/sessions.h"
#include "host/triton/infer_request.h"

namespace specd::host {

// By the names of infer_outputs(); valid UTF-8.
using InferOutputs = std::vector<std::pair<const char*, std::string>>;

// Where the responses go: any number, the last one marked, or an error in its place. [thread of Sessions, or the caller of
// InferCall::start()] Must not block. One that throws std::bad_alloc has done nothing. Nothing is called after the last.
class InferSink {
 public:
  virtual ~InferSink() = default;
  // `done` is called once, on any thread: true when the response is on its way, false when the client is gone. After the
  // last one the call's place is free.
  virtual void respond(const InferOutputs& outputs, bool is_last,
                       std::function<void(bool)> done) = 0;
  virtual void fail(const Status& status, std::function<void(bool)> done) = 0;
};

class InferCall final : public SessionReader, public std::enable_shared_from_this<InferCall> {
 public:
  // Begins; the call keeps itself and the sink until its end. A request that cancels others is answered at once, without
  // outputs. `client`: whose it is, for Sessions::cancel(). `engine` and `sessions` outlive it. Throws std::bad_alloc while
  // the sink has heard nothing.
  static std::shared_ptr<InferCall> start(Engine& engine, Sessions& sessions, InferRequest request,
                                          uint64_t client, std::shared_ptr<InferSink> sink);
  InferCall(int32_t page_tokens, InferRequest asked, std::shared_ptr<InferSink> sink);

  // [any] The client is gone.
  void disconnect();

 private:
  void write(SessionOutput output) override;
  void end(const Status& status) override;
  InferOutputs last_outputs() const;
  void close();
  std::shared_ptr<Session> session();

  const int32_t page_tokens_;
  const InferRequest asked_;  // of its request only the stop strings
  const uint64_t arrived_ns_;
  const std::shared_ptr<InferSink> sink_;
  Mutex mutex_;
  std::shared_ptr<Session> session_ SPECD_GUARDED_BY(mutex_);
  std::shared_ptr<InferCall> self_ SPECD_GUARDED_BY(mutex_);  // while the session is open
  // Thread of Sessions.
  std::string text_;  // what was not sent yet
  double logprob_ = 0;
  SessionText last_;  // without its text
  int32_t n_prompt_tokens_ = 0;
  Usage usage_;
};

}  // namespace specd::host
