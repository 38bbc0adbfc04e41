// The sessions of a daemon: the live ones, the queue of prompts, and the thread that writes.
//
//   transport --start--> [prompt queue: 2 threads] --submit--> engine
//   client <--reader-- [the thread here] <--buffer-- step thread
//
// Rendering a prompt may take a second, so it runs on separate threads, in order of arrival, from a
// bounded queue. Readers are called on one thread here, so the step thread never touches a socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/base/task_queue.h"
#include "host/serve/session.h"

namespace specd::host {

class Sessions {
 public:
  static constexpr size_t kPromptThreads = 2;
  static constexpr size_t kPromptsMax = 256;  // waiting

  // Unread output of one session; above it the request is cancelled.
  static constexpr size_t kBufferBytesMax = 1 << 20;

  // `engine` outlives it. Requests without a route get `default_route`.
  Sessions(Engine& engine, std::string default_route, size_t buffer_bytes_max = kBufferBytesMax);
  ~Sessions();  // REQUIRES every session to be closed
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // [any] `reader` lives until the session is closed.
  std::shared_ptr<Session> open(SessionReader& reader);
  // [any] Cancels the request of this id, whether it waits here or is in the engine; false if
  // neither.
  bool cancel(const std::string& request_id);
  // [any] Runs `task` after the prompts that wait. kUnavailable while draining, kExhausted when
  // kPromptsMax wait.
  [[nodiscard]] Status queue(std::function<void()> task);

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
  void wake(std::shared_ptr<Session> session);  // queues it for pump()
  void remove(Session* session);
  void run();
  std::vector<std::shared_ptr<Session>> live();

  Engine& engine_;
  const std::string default_route_;
  const size_t buffer_bytes_max_;
  std::atomic<bool> draining_{false};
  Mutex mutex_;
  CondVar changed_;
  CondVar all_closed_;
  std::deque<std::shared_ptr<Session>> ready_ SPECD_GUARDED_BY(mutex_);
  std::unordered_map<Session*, std::shared_ptr<Session>> live_ SPECD_GUARDED_BY(mutex_);
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  TaskQueue prompts_{kPromptThreads, kPromptsMax};  // last: its tasks use the members above
};

}  // namespace specd::host
