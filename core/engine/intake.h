// Connects client threads with the step thread: newly admitted requests, cancellation, draining,
// and tasks that must run between two steps. Keeps account of requests: each admitted one ends
// exactly once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/step/active_sequence.h"

namespace specd {

// Choices of requests, except `refused`; read by reports.
struct RequestCounters {
  std::atomic<uint64_t> admitted{0}, completed{0}, failed{0}, cancelled{0}, refused{0};
  std::atomic<uint64_t> off{0};              // admitted without a route
  std::atomic<uint64_t> deadline_misses{0};  // failed, past their deadline
};

class Intake {
 public:
  // queue_max: requests that may wait; more are refused.
  explicit Intake(int32_t queue_max) : queue_max_(queue_max) {}

  // ---- clients and control [any] ----

  // For a request of so many choices: kExhausted when the queue is full, kUnavailable while draining
  // or after the device has failed.
  Status may_admit(int32_t n_choices) const;
  // The first of n numbers in a row that no other sequence of this engine has.
  uint64_t new_numbers(int32_t n) { return last_number_.fetch_add(static_cast<uint64_t>(n)) + 1; }
  // Queues the choices of a request and returns its id: `wanted_id`, or a generated one when that is
  // empty. kInvalidArgument when a live request has the id; otherwise the errors of may_admit(). After
  // an error the sequences are gone and their sinks were not called.
  Result<std::string> put(std::vector<ActiveSequence> choices, const std::string& wanted_id);
  // Takes effect within one step; false when the request has ended.
  bool cancel(uint64_t number);
  bool cancel(const std::string& id);
  // Refuses new requests from now on.
  void start_drain();
  // kUnavailable while draining or after the device has failed.
  Status is_open() const;
  // kUnavailable once the device has failed.
  Status failure() const;
  bool is_draining() const;
  int32_t n_queued() const;
  // Waits until every admitted request has ended and its last event was sent; false at the timeout.
  bool wait_idle(std::chrono::milliseconds timeout);
  // A forward of a long prefill chunk may take seconds; a plugin that hangs takes forever.
  static constexpr std::chrono::seconds kBoundaryWait{60};
  // Runs `task` on the step thread between two steps and waits for it. Calls take turns. False when
  // its turn and the end of a step did not come within `timeout`; then the task never runs. Throws std::bad_alloc when
  // the task did.
  bool between_steps(std::function<void()> task, std::chrono::seconds timeout = kBoundaryWait);
  // Cancels every live request and ends the step thread.
  void stop();

  RequestCounters counters;

  // ---- the step thread [step] ----

  struct Arrived {
    std::vector<ActiveSequence> sequences;
    std::function<void()> task;  // empty = none; finish_task() after it has run
    bool stop = false;
  };
  // Waits until there is something to do; returns at once when `has_work`. `beat`: of the
  // step thread, whose turn begins when this returns.
  Arrived wait(bool has_work, Heartbeat& beat);
  void finish_task(bool has_memory);
  // The number of waiting sequences outside the inbox.
  void set_waiting(int32_t n_waiting);
  // Counts how the sequence has ended, frees the id of its request if it was the last choice, and
  // sends its last event. When it has failed, the other choices are cancelled. n_waiting as above.
  void end(Sequence& sequence, int32_t n_waiting);
  // Records that the device has failed; from now on nothing is admitted. Returns the inbox.
  std::vector<ActiveSequence> fail(const Status& why);

 private:
  Status is_open_locked() const SPECD_REQUIRES(mutex_);
  Status may_admit_locked(int32_t n_choices) const SPECD_REQUIRES(mutex_);

  const int32_t queue_max_;
  std::atomic<uint64_t> last_number_{0};
  mutable Mutex mutex_;
  CondVar wake_;  // wakes the step thread
  CondVar idle_, task_done_, task_turn_;
  std::vector<ActiveSequence> inbox_ SPECD_GUARDED_BY(mutex_);
  // By the request's number: its choices that are admitted and have not ended.
  std::unordered_map<uint64_t, std::vector<Sequence*>> live_ SPECD_GUARDED_BY(mutex_);
  std::unordered_map<std::string, uint64_t> number_of_ SPECD_GUARDED_BY(mutex_);  // of live ids
  int32_t n_waiting_ SPECD_GUARDED_BY(mutex_) = 0;     // outside the inbox
  int32_t n_unfinished_ SPECD_GUARDED_BY(mutex_) = 0;  // admitted, last event not sent
  bool draining_ SPECD_GUARDED_BY(mutex_) = false;
  bool stopping_ SPECD_GUARDED_BY(mutex_) = false;
  Status failure_ SPECD_GUARDED_BY(mutex_);              // of the device
  bool has_task_turn_ SPECD_GUARDED_BY(mutex_) = false;  // a call of between_steps() has its turn
  std::function<void()> task_ SPECD_GUARDED_BY(mutex_);
  bool task_has_run_ SPECD_GUARDED_BY(mutex_) = false;
  bool task_had_memory_ SPECD_GUARDED_BY(mutex_) = true;
};

}  // namespace specd
