// The sessions of a daemon: the live ones, the queue of prompts, and the thread that writes.
//
//   transport --start--> [prompt queue] --submit--> engine
//   client <--reader-- [the thread here] <--buffer-- step thread
//
// Rendering a prompt may take seconds, so it runs on the prompt queue's threads. Readers are called
// on one thread here, so the step thread never touches a socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/serve/prompt_queue.h"
#include "host/serve/session.h"

namespace specd::host {

class Sessions {
 public:
  // Unread output of one session; above it the request is cancelled.
  static constexpr size_t kBufferBytesMax = 1 << 20;
  // Unread output of all sessions, prompts in ids and echoes included; above it the session that has the most
  // is cancelled.
  static constexpr size_t kUnreadBytesMax = size_t{256} << 20;

  // `engine` outlives it. Requests without a route get `default_route`.
  Sessions(Engine& engine, std::string default_route, size_t buffer_bytes_max = kBufferBytesMax,
           size_t unread_bytes_max = kUnreadBytesMax);
  ~Sessions();  // REQUIRES every session to be closed
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // [any] `reader` lives until the session is closed.
  std::shared_ptr<Session> open(SessionReader& reader);
  // [any] Cancels the request of this id, whether it waits here or is in the engine; false if
  // neither, or if it is not of this client.
  static constexpr uint64_t kEveryClient = 0;
  bool cancel(const std::string& request_id, uint64_t client = kEveryClient);
  // [any] Runs `render` when it is the turn of the request's prompt. The number is for
  // forget_prompt(). kUnavailable while draining, else the errors of PromptQueue::add().
  Result<uint64_t> queue(const Request& request, std::function<void()> render);
  // [any] The prompt is no longer wanted. False when it does not wait any more.
  bool forget_prompt(uint64_t number) { return prompts_.remove(number); }

  // [any] Refuses new requests with kUnavailable from now on; waiting prompts are still rendered.
  void start_drain() { draining_ = true; }
  // [any] True when no prompt waits or is being rendered; false at the timeout.
  bool wait_prompts(std::chrono::milliseconds timeout) { return prompts_.wait_idle(timeout); }
  // [any] Cancels every request that runs or waits; each session ends with `reason`.
  void abort_all(const Status& reason);
  // [any] True when every session is closed; false at the timeout.
  bool wait_closed(std::chrono::milliseconds timeout);

 private:
  friend class Session;
  Engine& engine() { return engine_; }
  const std::string& route_of(const Request& request) const;
  Status is_open() const;                       // kUnavailable while draining
  void wake(std::shared_ptr<Session> session);  // queues it for pump(); needs no memory
  void remove(Session* session);
  void run();
  void cut_unread();
  std::vector<std::shared_ptr<Session>> live();

  Engine& engine_;
  const std::string default_route_;
  const size_t buffer_bytes_max_, unread_bytes_max_;
  std::atomic<bool> draining_{false};
  std::atomic<size_t> unread_bytes_{0};
  Mutex mutex_;
  CondVar changed_;
  CondVar all_closed_;
  std::shared_ptr<Session> first_ready_ SPECD_GUARDED_BY(mutex_);
  Session* last_ready_ SPECD_GUARDED_BY(mutex_) = nullptr;
  std::unordered_map<Session*, std::shared_ptr<Session>> live_ SPECD_GUARDED_BY(mutex_);
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  PromptQueue prompts_;  // last: its prompts use the members above
};

}  // namespace specd::host
