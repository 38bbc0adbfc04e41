#include "core/engine/intake.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"

namespace specd {
namespace {

void cancel_all(const std::vector<Sequence*>& choices) {
  for (Sequence* choice : choices) choice->cancel();
}

}  // namespace

Status Intake::is_open_locked() const {
  if (!failure_.ok()) return failure_;
  return draining_ ? Status(Code::kUnavailable, "the daemon is shutting down") : Status();
}

Status Intake::may_admit_locked(int32_t n_choices) const {
  SPECD_OK_OR_RETURN(is_open_locked());
  const auto n = static_cast<int32_t>(inbox_.size()) + n_waiting_;
  if (n_choices <= queue_max_ - n) return Status();
  std::string why = "the queue is full: " + std::to_string(n) + " requests wait";
  if (n_choices > 1) {
    // Preempted sequences wait too, also where the queue is full.
    why = "the queue has " + std::to_string(std::max(0, queue_max_ - n)) + " places left, " +
          std::to_string(n_choices) + " choices need as many";
  }
  return Status(Code::kExhausted,
                why + "; engine.queue_max is " + std::to_string(queue_max_) + "; try again later");
}

Status Intake::may_admit(int32_t n_choices) const {
  const MutexLock lock(mutex_);
  return may_admit_locked(n_choices);
}

Result<std::string> Intake::put(std::vector<ActiveSequence> choices, const std::string& wanted_id) {
  const uint64_t number = choices.front().sequence->number();
  const auto n = static_cast<int32_t>(choices.size());
  std::vector<Sequence*> sequences;
  sequences.reserve(choices.size());
  for (const ActiveSequence& choice : choices) sequences.push_back(choice.sequence.get());
  std::string id = wanted_id;
  {
    // One critical section: a cancel that comes after the id is known finds the request.
    const MutexLock lock(mutex_);
    SPECD_OK_OR_RETURN(may_admit_locked(n));
    // A client may have chosen an id that looks like a generated one.
    for (uint64_t next = number; id.empty() || (wanted_id.empty() && number_of_.contains(id));
         ++next) {
      id = "req-" + std::to_string(next);
    }
    for (Sequence* sequence : sequences) sequence->set_id(id);
    if (!number_of_.try_emplace(id, number).second) {
      return Status(Code::kInvalidArgument, "request_id", "'" + id + "' is running already");
    }
    LiveRoute* const route = choices.front().route.get();
    try {
      live_.emplace(number, std::move(sequences));
      if (const size_t n_all = inbox_.size() + choices.size(); n_all > inbox_.capacity()) {
        inbox_.reserve(std::max(n_all, 2 * inbox_.capacity()));
      }
    } catch (...) {  // there is no memory; nothing stays behind
      live_.erase(number);
      number_of_.erase(id);
      throw;
    }
    for (ActiveSequence& choice : choices) inbox_.push_back(std::move(choice));
    (route != nullptr ? route->counters.requests : counters.off) += static_cast<uint64_t>(n);
    counters.admitted += static_cast<uint64_t>(n);
    n_unfinished_ += n;
  }
  wake_.notify_one();
  return id;
}

// No need to wake the step thread: it has work while a request is live.
bool Intake::cancel(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto found = live_.find(number);
  if (found == live_.end()) return false;
  cancel_all(found->second);
  return true;
}

bool Intake::cancel(const std::string& id) {
  const MutexLock lock(mutex_);
  const auto found = number_of_.find(id);
  if (found == number_of_.end()) return false;
  cancel_all(live_.at(found->second));
  return true;
}

void Intake::start_drain() {
  const MutexLock lock(mutex_);
  draining_ = true;
}

Status Intake::is_open() const {
  const MutexLock lock(mutex_);
  return is_open_locked();
}

Status Intake::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

bool Intake::is_draining() const {
  const MutexLock lock(mutex_);
  return draining_;
}

int32_t Intake::n_queued() const {
  const MutexLock lock(mutex_);
  return static_cast<int32_t>(inbox_.size()) + n_waiting_;
}

bool Intake::wait_idle(std::chrono::milliseconds timeout) {
  const auto deadline = CondVar::Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (n_unfinished_ > 0) {
    if (!idle_.wait_until(lock, deadline)) return n_unfinished_ == 0;
  }
  return true;
}

bool Intake::between_steps(std::function<void()> task, std::chrono::seconds timeout) {
  const auto deadline = CondVar::Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (has_task_turn_) {
    if (!task_turn_.wait_until(lock, deadline) && has_task_turn_) return false;
  }
  if (stopping_) return false;  // there is no further step
  has_task_turn_ = true;
  task_has_run_ = false;
  task_ = std::move(task);
  wake_.notify_one();
  bool is_withdrawn = false, is_late = false;
  while (!task_has_run_ && !is_withdrawn) {
    if (is_late) {
      task_done_.wait(lock);
    } else if (!task_done_.wait_until(lock, deadline)) {
      is_late = true;
      // A task that is no longer in task_ is running; wait for its end.
      is_withdrawn = std::exchange(task_, nullptr) != nullptr;
    }
  }
  has_task_turn_ = false;
  task_turn_.notify_one();
  if (is_withdrawn) return false;
  if (!task_had_memory_) throw std::bad_alloc();
  return true;
}

void Intake::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = draining_ = true;
  }
  wake_.notify_all();
}

Intake::Arrived Intake::wait(bool has_work, Heartbeat& beat) {
  Arrived arrived;
  MutexLock lock(mutex_);
  beat.idle();
  while (!stopping_ && !has_work && inbox_.empty() && task_ == nullptr) wake_.wait(lock);
  beat.busy();
  arrived.sequences.swap(inbox_);
  n_waiting_ += static_cast<int32_t>(arrived.sequences.size());
  arrived.task = std::exchange(task_, nullptr);
  arrived.stop = stopping_;
  if (stopping_) {
    for (const auto& [number, choices] : live_) cancel_all(choices);
  }
  return arrived;
}

void Intake::finish_task(bool has_memory) {
  {
    const MutexLock lock(mutex_);
    task_has_run_ = true;
    task_had_memory_ = has_memory;
  }
  task_done_.notify_all();
}

void Intake::set_waiting(int32_t n_waiting) {
  const MutexLock lock(mutex_);
  n_waiting_ = n_waiting;
}

void Intake::end(Sequence& sequence, int32_t n_waiting) {
  switch (sequence.finish()) {
    case FinishReason::kCancelled:
      ++counters.cancelled;
      break;
    case FinishReason::kError:
      ++counters.failed;
      if (sequence.error().code() == Code::kDeadlineExceeded) ++counters.deadline_misses;
      break;
    default:
      ++counters.completed;
      break;
  }
  {
    // Before the last event: a client that has seen it may reuse the id and the place in the queue.
    const MutexLock lock(mutex_);
    n_waiting_ = n_waiting;
    const auto request = live_.find(sequence.request_number());
    std::vector<Sequence*>& others = request->second;
    std::erase(others, &sequence);
    if (sequence.finish() == FinishReason::kError) cancel_all(others);
    if (others.empty()) {
      live_.erase(request);
      number_of_.erase(sequence.request().id);
    }
  }
  try {
    sequence.send();
  } catch (const std::bad_alloc&) {
    // The client does not hear of its end; the engine counts it.
    log(LogLevel::kError, "the last event of a request found no memory");
  }
  {
    const MutexLock lock(mutex_);
    --n_unfinished_;
  }
  idle_.notify_all();
}

std::vector<ActiveSequence> Intake::fail(const Status& why) {
  std::vector<ActiveSequence> arrived;
  const MutexLock lock(mutex_);
  if (failure_.ok()) {
    failure_ = Status(Code::kUnavailable, "no step can run any more: " + why.message());
    log(LogLevel::kError, "every request ends: " + failure_.message());
  }
  draining_ = true;
  arrived.swap(inbox_);  // admitted before the failure
  n_waiting_ += static_cast<int32_t>(arrived.size());
  return arrived;
}

}  // namespace specd
