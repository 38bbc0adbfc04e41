// The step thread: takes what arrived, steps, tells clients.
#include <utility>

#include "core/base/log.h"
#include "core/engine/impl.h"

namespace specd {

void Engine::Impl::loop() {
  Status failed;  // of the device
  while (true) {
    std::vector<ActiveSequence> arrived;
    std::function<void()> task;
    bool stop = false;
    {
      std::unique_lock lock(mutex);
      step_since_ns = 0;
      wake.wait(lock, [&] {
        return stopping || !inbox.empty() || !batch->empty() || boundary_task != nullptr;
      });
      step_since_ns = now_ns();
      arrived.swap(inbox);
      task = std::exchange(boundary_task, nullptr);
      stop = stopping;
      if (stop) {
        for (const auto& [number, sequence] : live) sequence->cancel();
      }
    }
    if (task != nullptr) pass_boundary(task);
    for (ActiveSequence& next : arrived) batch->add_waiting(std::move(next));
    batch->end_unwanted();
    if (stop) return;
    if (failed.ok()) failed = step();
    if (!failed.ok()) fail_all(failed);
  }
}

Status Engine::Impl::step() {
  const StepPlan plan = batch->plan();
  SPECD_OK_OR_RETURN(batch->carry_out(plan));
  {
    const std::lock_guard lock(mutex);
    count_queued();
  }
  // Beside a device the texts of a step go out while the next one is computed.
  const auto send_all = [this] {
    for (ActiveSequence& member : batch->running()) {
      const bool runs = member.slot >= 0 && member.sequence->finish() == FinishReason::kNone;
      if (runs) member.sequence->send();  // those that have ended get one last event
    }
  };
  SPECD_TRY(const StepCounters counters, runner->run(plan, batch->running(), send_all));
  n_steps += plan.items.empty() ? 0 : 1;
  n_rows += counters.rows;
  n_tokens += counters.tokens;
  n_kv_moves += counters.kv_moves;
  batch->settle([this](Sequence& sequence) {
    if (device->is_host()) sequence.send();
  });
  return Status();
}

// The device is gone, and with it what the sequences had computed. Everybody gets the reason.
void Engine::Impl::fail_all(const Status& why) {
  std::vector<ActiveSequence> arrived;
  {
    const std::lock_guard lock(mutex);
    if (failure.ok()) {
      failure = Status(Code::kUnavailable, "the device failed: " + why.message());
      log(LogLevel::kError, "every request ends: " + failure.message());
    }
    draining = true;
    arrived.swap(inbox);  // admitted before that
  }
  for (ActiveSequence& next : arrived) batch->add_waiting(std::move(next));
  batch->fail_all(failure);
}

// REQUIRES mutex. [step]
void Engine::Impl::count_queued() {
  n_queued = static_cast<int32_t>(inbox.size() + batch->n_waiting());
}

void Engine::Impl::finish(Sequence& sequence) {
  switch (sequence.finish()) {
    case FinishReason::kCancelled:
      ++n_cancelled;
      break;
    case FinishReason::kError:
      ++n_failed;
      if (sequence.error().code() == Code::kDeadlineExceeded) ++n_deadline_misses;
      break;
    default:
      ++n_completed;
      break;
  }
  {
    // Before the last event: a client that has seen it may use the id and the place in the queue.
    const std::lock_guard lock(mutex);
    count_queued();
    live.erase(sequence.number());
    number_of.erase(sequence.request().id);
  }
  sequence.send();
  {
    const std::lock_guard lock(mutex);
    --n_unfinished;
  }
  idle.notify_all();
}

}  // namespace specd
