#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/engine/impl.h"
#include "core/spec/budget.h"

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
        return stopping || !inbox.empty() || !running.empty() || !waiting.empty() ||
               boundary_task != nullptr;
      });
      step_since_ns = now_ns();
      arrived.swap(inbox);
      task = std::exchange(boundary_task, nullptr);
      stop = stopping;
      if (stop) {
        for (const auto& [number, request] : live) request->cancel();
      }
    }
    if (task != nullptr) pass_boundary(task);
    for (ActiveSequence& next : arrived) {
      const Rank rank = next.request->rank;
      waiting.emplace(rank, std::move(next));
    }
    end_unwanted();
    if (stop) return;
    if (failed.ok()) failed = step();
    if (!failed.ok()) fail_all(failed);
  }
}

// The device is gone, and with it what the sequences had computed. Everybody gets the reason.
void Engine::Impl::fail_all(const Status& why) {
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
  n_running = static_cast<int32_t>(running.size());
  {
    const std::lock_guard lock(mutex);
    if (failure.ok()) {
      failure = Status(Code::kUnavailable, "the device failed: " + why.message());
      log(LogLevel::kError, "every request ends: " + failure.message());
    }
    draining = true;
    // Admitted before that.
    for (ActiveSequence& next : inbox) {
      const Rank rank = next.request->rank;
      waiting.emplace(rank, std::move(next));
    }
    inbox.clear();
  }
  const auto fail = [this](Sequence& request) {
    if (request.finish() == FinishReason::kNone) request.fail(FinishReason::kError, failure);
  };
  for (auto& [rank, next] : waiting) fail(*next.request);
  for (ActiveSequence& sequence : running) fail(*sequence.request);
  end_unwanted();
}

Status Engine::Impl::step() {
  const StepPlan next_step = plan();
  if (next_step.n_pages_to_reclaim > 0) draft_models->reclaim(next_step.n_pages_to_reclaim);
  for (const int32_t index : next_step.preempted) preempt(running[static_cast<size_t>(index)]);
  for (int32_t i = 0; i < next_step.n_admitted; ++i) {
    // The preempted have larger ranks than whom they made room for.
    start(std::move(waiting.extract(waiting.begin()).mapped()));
  }
  {
    const std::lock_guard lock(mutex);
    n_queued += static_cast<int32_t>(next_step.preempted.size()) - next_step.n_admitted;
  }
  for (const PlanItem& item : next_step.items) {
    SPECD_OK_OR_RETURN(take_pages(running[static_cast<size_t>(item.sequence)], item.n_new_pages));
  }
  n_running = static_cast<int32_t>(running.size() - next_step.preempted.size());
  report_pages();

  // Beside a device the texts of a step go out while the next one is computed.
  const auto send_all = [this] {
    for (ActiveSequence& sequence : running) {
      const bool runs = sequence.slot >= 0 && sequence.request->finish() == FinishReason::kNone;
      if (runs) sequence.request->send();  // those that have ended get one last event
    }
  };
  SPECD_TRY(const StepCounters counters, runner->run(next_step, running, send_all));
  n_steps += next_step.items.empty() ? 0 : 1;
  n_rows += counters.rows;
  n_tokens += counters.tokens;
  n_kv_moves += counters.kv_moves;
  for (ActiveSequence& sequence : running) {
    if (sequence.slot < 0) continue;  // preempted
    keep_prefix(sequence);
    if (sequence.request->finish() != FinishReason::kNone) {
      retire(sequence);
    } else if (device->is_host()) {
      sequence.request->send();
    }
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
  report_pages();
  return Status();
}

StepPlan Engine::Impl::plan() {
  const SchedulerLimits limits{.step_tokens_max = options.step_tokens_max,
                               .logits_rows_max = logits_rows_max,
                               .max_sequences = options.max_sequences};
  std::vector<RunningView> running_views;
  Rank last;
  for (const ActiveSequence& sequence : running) {
    running_views.push_back({.rank = sequence.request->rank,
                             .n_tokens = sequence.request->size(),
                             .n_computed = sequence.n_computed,
                             .n_pages = static_cast<int32_t>(sequence.table.pages.size()),
                             .n_own_pages = 0,
                             .draft_nodes_max = draft_nodes(sequence)});
    last = std::max(last, sequence.request->rank);
  }
  // As many as one step can begin with.
  std::vector<WaitingView> waiting_views;
  int64_t rows = 0;
  for (const auto& [rank, next] : waiting) {
    const bool has_place = running.size() + waiting_views.size() < size_t(options.max_sequences);
    if (rows >= options.step_tokens_max || (!has_place && last < rank)) break;
    const int32_t size = next.request->size();
    PrefixCache::Prefix found = cached_prefix(next);
    // At least one row is computed. A prompt that is here to its very end gets a copy of the last
    // page, to compute that row in.
    const int32_t n_computed = std::min(found.n_pages * kernels::kPageTokens, size - 1);
    if (found.n_pages > n_computed / kernels::kPageTokens) {
      --found.n_pages;
      found.n_idle = std::min(found.n_idle, found.n_pages);
    }
    waiting_views.push_back({.rank = rank,
                             .n_tokens = size,
                             .n_computed = n_computed,
                             .n_pages = found.n_pages,
                             .n_idle = found.n_idle});
    rows += size - n_computed;
  }

  const auto make = [&](int32_t reclaimable) {
    return plan_step(limits, running_views, waiting_views, pages->n_free() + pages->n_idle(),
                     reclaimable);
  };
  StepPlan made = make(0);
  if (!made.pages_short) return made;  // with whatever could be reclaimed, it would be the same
  // What each would free, were all with a larger rank gone: shared pages count for the last holder.
  std::vector<int32_t> holders(static_cast<size_t>(pages->n_pages()), 0);
  std::vector<size_t> order;
  for (size_t i = 0; i < running.size(); ++i) {
    order.push_back(i);
    for (const int32_t page : running[i].table.pages) ++holders[static_cast<size_t>(page)];
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return running_views[b].rank < running_views[a].rank; });
  for (const size_t i : order) {
    for (const int32_t page : running[i].table.pages) {
      if (--holders[static_cast<size_t>(page)] == 0) ++running_views[i].n_own_pages;
    }
  }
  return make(draft_models->n_reclaimable());
}

int32_t Engine::Impl::draft_nodes(const ActiveSequence& sequence) const {
  if (!sequence.drafts() || sequence.route->suspended(static_cast<int32_t>(running.size())))
    return 0;
  const Sequence& request = *sequence.request;
  const int32_t most = std::min(sequence.route->draft_nodes_max,
                                request.request().draft_nodes_max.value_or(INT32_MAX));
  return draft_budget(most, request.n_left(), sequence.route->chain());
}

// Nothing for a drafter that must see the hidden states of the whole prompt.
PrefixCache::Prefix Engine::Impl::cached_prefix(const ActiveSequence& sequence) const {
  if (cache == nullptr || !sequence.may_skip_rows()) return {};
  return cache->find(sequence.request->request().cache_salt, sequence.request->tokens());
}

void Engine::Impl::start(ActiveSequence next) {
  Sequence& request = *next.request;
  const std::string& salt = request.request().cache_salt;
  next.slot = free_slots.back();
  free_slots.pop_back();
  const int32_t n_pages = cached_prefix(next).n_pages;
  next.n_computed = std::min(n_pages * kernels::kPageTokens, request.size() - 1);
  if (n_pages > 0) {
    next.chain = cache->attach(salt, request.tokens(), next.n_computed / kernels::kPageTokens,
                               next.table.pages);
  }
  if (n_pages > next.chain.n_pages) {
    std::vector<int32_t> all;
    cache->attach(salt, request.tokens(), n_pages, all);
    next.copy_from = all.back();
    all.pop_back();
    pages->release(all);
  }
  if (request.started_ns == 0) {
    request.started_ns = now_ns();
    request.usage.cached_prompt_tokens = next.n_computed;
    if (cache != nullptr && next.may_skip_rows()) {
      n_prefix_query_tokens += static_cast<uint64_t>(request.size());
    }
    n_prefix_hit_tokens += static_cast<uint64_t>(next.n_computed);
  }
  running.push_back(std::move(next));
}

Status Engine::Impl::take_pages(ActiveSequence& sequence, int32_t n) {
  const size_t first = sequence.table.pages.size();
  SPECD_CHECK(pages->take(n, sequence.table.pages), "the plan gives only what is there");
  if (sequence.copy_from < 0) return Status();
  SPECD_OK_OR_RETURN(runner->copy_page(sequence.copy_from, sequence.table.pages[first]));
  pages->release(std::exchange(sequence.copy_from, -1));
  return Status();
}

// After a step: full pages become findable, pages of rejected nodes are free again.
void Engine::Impl::keep_prefix(ActiveSequence& sequence) {
  const Sequence& request = *sequence.request;
  std::vector<int32_t>& table = sequence.table.pages;
  if (cache != nullptr && request.finish() != FinishReason::kError) {
    cache->extend(sequence.chain, request.request().cache_salt, request.tokens(),
                  std::min(sequence.n_computed, request.size()), table);
  }
  for (const auto keep = static_cast<size_t>(pages_for(int64_t{sequence.n_computed} + 1));
       table.size() > keep; table.pop_back()) {
    pages->release(table.back());
  }
}

void Engine::Impl::preempt(ActiveSequence& sequence) {
  const bool lost = sequence.drafting == ActiveSequence::Drafting::kLost;
  if (sequence.request->finish() == FinishReason::kNone)
    sequence.request->send();  // it may wait long
  runner->end(sequence, SPECD_END_PREEMPTED);
  if (!lost) sequence.drafting = ActiveSequence::Drafting::kNotBegun;
  let_go(sequence);
  sequence.resumed = true;
  sequence.n_computed = 0;
  ++sequence.request->usage.preemptions;
  ++n_preemptions;
  const Rank rank = sequence.request->rank;
  waiting.emplace(rank, std::exchange(sequence, ActiveSequence()));
}

void Engine::Impl::let_go(ActiveSequence& sequence) {
  if (cache != nullptr) cache->touch(sequence.chain);
  sequence.chain = {};
  pages->release(sequence.table.pages);
  if (sequence.copy_from >= 0) pages->release(std::exchange(sequence.copy_from, -1));
  free_slots.push_back(sequence.slot);
  sequence.slot = -1;
}

// Gives everything back, then tells the client: who sees the last event finds the books balanced.
void Engine::Impl::retire(ActiveSequence& sequence) {
  runner->end(sequence, sequence.request->finish() == FinishReason::kStop ||
                                sequence.request->finish() == FinishReason::kLength
                            ? uint32_t{SPECD_END_FINISHED}
                            : uint32_t{SPECD_END_CANCELLED});
  sequence.route.reset();
  let_go(sequence);
  report_pages();
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
      if (request.error().code() == Code::kDeadlineExceeded) ++n_deadline_misses;
      break;
    default:
      ++n_completed;
      break;
  }
  {
    // Before the last event: who has seen it may use the id again.
    const std::lock_guard lock(mutex);
    live.erase(request.number());
    number_of.erase(request.request().id);
  }
  request.send();
  {
    const std::lock_guard lock(mutex);
    --n_unfinished;
  }
  idle.notify_all();
}

// Cancelled, or past the deadline.
void Engine::Impl::end_unwanted() {
  const uint64_t now = now_ns();
  for (auto it = waiting.begin(); it != waiting.end();) {
    if (!it->second.request->must_end(now)) {
      ++it;
      continue;
    }
    ActiveSequence next = std::move(it->second);
    it = waiting.erase(it);
    {
      const std::lock_guard lock(mutex);
      --n_queued;
    }
    next.route.reset();
    finish(*next.request);
  }
  for (ActiveSequence& sequence : running) {
    if (sequence.request->must_end(now)) retire(sequence);
  }
  std::erase_if(running, [](const ActiveSequence& sequence) { return sequence.slot < 0; });
}

void Engine::Impl::report_pages() {
  pages_free = pages->n_free();
  pages_idle = pages->n_idle();
}

}  // namespace specd
