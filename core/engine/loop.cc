#include <utility>

#include "core/base/check.h"
#include "core/engine/impl.h"
#include "core/spec/budget.h"

namespace specd {

void Engine::Impl::loop() {
  while (true) {
    std::vector<Waiting> arrived;
    std::unordered_set<std::string> unwanted;
    std::function<void()> task;
    bool stop = false;
    {
      std::unique_lock lock(mutex);
      step_since_ns = 0;
      wake.wait(lock, [&] {
        return stopping || !inbox.empty() || !cancels.empty() || !running.empty() ||
               !waiting.empty() || boundary_task != nullptr;
      });
      step_since_ns = now_ns();
      arrived.swap(inbox);
      unwanted.swap(cancels);
      task = std::exchange(boundary_task, nullptr);
      stop = stopping;
    }
    if (task != nullptr) pass_boundary(task);
    for (Waiting& next : arrived) waiting.push_back(std::move(next));
    if (!unwanted.empty()) cancel_listed(unwanted);
    if (stop) {
      cancel_all();
      return;
    }
    step();
  }
}

void Engine::Impl::step() {
  std::vector<RunningView> running_views;
  for (const ActiveSequence& sequence : running) {
    const int32_t nodes = sequence.drafts()
                              ? draft_budget(sequence.route->draft_nodes_max,
                                             sequence.request->n_left(), sequence.route->chain())
                              : 0;
    running_views.push_back({.n_pending = sequence.n_pending(), .draft_nodes_max = nodes});
  }
  std::vector<WaitingView> waiting_views;
  const size_t places = static_cast<size_t>(options.max_sequences) - running.size();
  for (const Waiting& next : waiting) {
    if (waiting_views.size() == places) break;
    waiting_views.push_back({.pages = next.pages, .n_pending = next.request->size()});
  }
  if (!waiting_views.empty() && waiting_views.front().pages > pages->n_free()) {
    draft_models->reclaim(waiting_views.front().pages - pages->n_free());
  }
  const StepPlan plan = plan_step(
      {.step_tokens_max = options.step_tokens_max, .max_sequences = options.max_sequences},
      running_views, waiting_views, pages->n_free());
  for (int32_t i = 0; i < plan.n_admitted; ++i) {
    start(std::move(waiting.front()));
    waiting.pop_front();
  }
  if (plan.n_admitted > 0) {
    const std::lock_guard lock(mutex);
    n_queued -= plan.n_admitted;
  }
  n_running = static_cast<int32_t>(running.size());
  pages_free = pages->n_free();
  if (plan.items.empty()) return;

  const StepCounters counters = runner->run(plan, running);
  ++n_steps;
  n_rows += counters.rows;
  n_tokens += counters.tokens;
  n_kv_moves += counters.kv_moves;
  for (ActiveSequence& sequence : running) {
    if (sequence.request->finish() == FinishReason::kNone) {
      sequence.request->send();
    } else {
      retire(sequence);
    }
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
}

void Engine::Impl::start(Waiting next) {
  ActiveSequence sequence;
  sequence.request = std::move(next.request);
  sequence.request->started_ns = now_ns();
  sequence.route = std::move(next.route);
  sequence.slot = free_slots.back();
  free_slots.pop_back();
  SPECD_CHECK(pages->take(next.pages, sequence.table.pages), "the plan admits only what fits");
  running.push_back(std::move(sequence));
}

// Gives everything back, then tells the client: who sees the last event finds the books balanced.
void Engine::Impl::retire(ActiveSequence& sequence) {
  runner->end(sequence, sequence.request->finish() == FinishReason::kCancelled
                            ? uint32_t{SPECD_END_CANCELLED}
                            : uint32_t{SPECD_END_FINISHED});
  sequence.route.reset();
  pages->release(sequence.table.pages);
  pages_free = pages->n_free();
  free_slots.push_back(sequence.slot);
  sequence.slot = -1;
  --n_running;
  finish(*sequence.request);
}

void Engine::Impl::finish(Sequence& request) {
  switch (request.finish()) {
    case FinishReason::kCancelled:
      ++n_cancelled;
      break;
    case FinishReason::kError:
      ++n_failed;
      break;
    default:
      ++n_completed;
      break;
  }
  {
    // Before the last event: who has seen it may use the id again.
    const std::lock_guard lock(mutex);
    live_ids.erase(request.request().id);
    cancels.erase(request.request().id);
  }
  request.send();
  {
    const std::lock_guard lock(mutex);
    --n_unfinished;
  }
  idle.notify_all();
}

void Engine::Impl::cancel_listed(const std::unordered_set<std::string>& ids) {
  const Status why(Code::kCancelled, "the request was cancelled");
  std::erase_if(waiting, [&](Waiting& next) {
    if (!ids.contains(next.request->request().id)) return false;
    next.request->fail(FinishReason::kCancelled, why);
    {
      const std::lock_guard lock(mutex);
      --n_queued;
    }
    next.route.reset();
    finish(*next.request);
    return true;
  });
  for (ActiveSequence& sequence : running) {
    if (!ids.contains(sequence.request->request().id)) continue;
    sequence.request->fail(FinishReason::kCancelled, why);
    retire(sequence);
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
}

void Engine::Impl::cancel_all() {
  std::unordered_set<std::string> everything;
  for (const Waiting& next : waiting) everything.insert(next.request->request().id);
  for (const ActiveSequence& sequence : running) everything.insert(sequence.request->request().id);
  cancel_listed(everything);
}

}  // namespace specd
