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
// InferCalls::start()] Must not block. One that throws std::bad_alloc has done nothing. Nothing is called after the last.
class InferSink {
 public:
  virtual ~InferSink() = default;
  // `done` is called once, on any thread: true when the response is on its way, false when the client is gone. After the
  // last one the call's place is free.
  virtual void respond(const InferOutputs& outputs, bool is_last,
                       std::function<void(bool)> done) = 0;
  virtual void fail(const Status& status, std::function<void(bool)> done) = 0;
};

class InferCall;
class InferIds;

// Begins calls, and knows those that run. [any] Both outlive it, and it the calls.
class InferCalls {
 public:
  InferCalls(Engine& engine, Sessions& sessions);
  ~InferCalls();

  // Begins; the call keeps itself and the sink until its end. A request that cancels ends those of this client with its
  // id, and is answered at once, without outputs. Ids are the clients' own and need not differ, so the engine knows the
  // requests by others. `client`: whose it is. Throws std::bad_alloc while the sink has heard nothing.
  std::shared_ptr<InferCall> start(InferRequest request, uint64_t client,
                                   std::shared_ptr<InferSink> sink) const;

 private:
  Engine& engine_;
  Sessions& sessions_;
  const std::shared_ptr<InferIds> ids_;
};

class InferCall final : public SessionReader, public std::enable_shared_from_this<InferCall> {
 public:
  InferCall(int32_t page_tokens, uint64_t client, InferRequest asked,
            std::shared_ptr<InferSink> sink, std::shared_ptr<InferIds> ids);
  ~InferCall();
  InferCall(const InferCall&) = delete;
  InferCall& operator=(const InferCall&) = delete;

  // [any] The client is gone.
  void disconnect();

 private:
  friend class InferCalls;
  void write(SessionOutput output) override;
  void end(const Status& status) override;
  InferOutputs last_outputs() const;
  void close();
  std::shared_ptr<Session> session();

  const int32_t page_tokens_;
  const uint64_t client_;
  const InferRequest asked_;  // of its request only the id and the stop strings
  const uint64_t arrived_ns_;
  const std::shared_ptr<InferSink> sink_;
  const std::shared_ptr<InferIds> ids_;
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
