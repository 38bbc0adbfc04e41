#include "core/engine/batch.h"

#include <algorithm>
#include <climits>
#include <new>
#include <unordered_set>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/spec/budget.h"

namespace specd {
namespace {

void fail(Sequence& sequence, const Status& why) {
  if (sequence.finish() == FinishReason::kNone) sequence.fail(FinishReason::kError, why);
}

}  // namespace

Batch::Batch(const SchedulerLimits& limits, PagePool& pages, PrefixCache* cache,
             ModelService& models, Worker& worker, StepRunner& runner, OnEnd on_end)
    : limits_(limits),
      pages_(pages),
      cache_(cache),
      models_(models),
      worker_(worker),
      runner_(runner),
      on_end_(std::move(on_end)) {
  for (int32_t slot = limits.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  count_pages();
}

void Batch::add(ActiveSequence next) {
  if (next.sequence->index() == 0) return add_waiting(std::move(next));
  try {
    followers_.push_back(std::move(next));  // without memory, `next` is as it was
  } catch (const std::bad_alloc&) {
    end_without_memory(next);
  }
}

// They find its full pages in the prefix cache.
void Batch::start_followers() {
  if (followers_.empty()) return;
  std::unordered_set<uint64_t> reading;
  const auto note = [&](const Sequence& sequence) {
    if (sequence.index() == 0 && sequence.n_output() == 0) reading.insert(sequence.number());
  };
  for (const ActiveSequence& member : running_) note(*member.sequence);
  for (const auto& [rank, next] : waiting_) note(*next.sequence);
  const auto started =
      std::stable_partition(followers_.begin(), followers_.end(), [&](const ActiveSequence& next) {
        return reading.contains(next.sequence->request_number());
      });
  // Taken out one by one, so that each is counted once if one of them ends for want of memory.
  const auto n_left = static_cast<size_t>(started - followers_.begin());
  std::reverse(started, followers_.end());
  while (followers_.size() > n_left) {
    ActiveSequence next = std::move(followers_.back());
    followers_.pop_back();
    add_waiting(std::move(next));
  }
}

void Batch::add_waiting(ActiveSequence next) {
  const Rank rank = next.sequence->rank;
  try {
    waiting_.try_emplace(rank, std::move(next));  // without memory, `next` is as it was
  } catch (const std::bad_alloc&) {
    end_without_memory(next);
  }
}

void Batch::end_without_memory(ActiveSequence& next) {
  // Words that need none.
  next.sequence->fail(FinishReason::kError, Status(Code::kExhausted, "out of memory"));
  next.route.reset();
  on_end_(*next.sequence);
}

StepPlan Batch::plan() {
  std::vector<RunningView> running_views;
  Rank last;
  for (const ActiveSequence& member : running_) {
    running_views.push_back({.rank = member.sequence->rank,
                             .n_tokens = member.sequence->size(),
                             .n_computed = member.n_computed,
                             .n_pages = static_cast<int32_t>(member.table.pages.size()),
                             .n_own_pages = 0,
                             .draft_nodes_max = draft_nodes(member),
                             .scores = member.sequence->scores_prompt(),
                             .copies = runner_.copies_logits(member)});
    last = std::max(last, member.sequence->rank);
  }
  // As many waiting sequences as one step can start.
  std::vector<WaitingView> waiting_views;
  cached_.clear();
  int64_t rows = 0;
  for (const auto& [rank, next] : waiting_) {
    const bool has_place =
        running_.size() + waiting_views.size() < static_cast<size_t>(limits_.max_sequences);
    if (rows >= limits_.step_tokens_max || (!has_place && last < rank)) break;
    cached_.push_back(cached_prefix(next));
    waiting_views.push_back({.rank = rank,
                             .n_tokens = next.sequence->size(),
                             .n_cached_pages = cached_.back().n_pages,
                             .n_idle_pages = cached_.back().n_idle,
                             .scores = next.sequence->scores_prompt()});
    rows += next.sequence->size() - admission_of(waiting_views.back()).n_computed;
  }
  const auto make = [&](int32_t reclaimable) {
    return plan_step(limits_, running_views, waiting_views, pages_.n_free() + pages_.n_idle(),
                     reclaimable);
  };
  StepPlan made = make(0);
  if (!made.pages_short) return made;  // reclaimable pages would not change it
  count_own_pages(running_views);
  return make(models_.n_reclaimable());
}

// Counts the pages that preempting each sequence would free once all with a larger rank are gone. A
// shared page counts for its last holder.
void Batch::count_own_pages(std::vector<RunningView>& views) const {
  std::vector<int32_t> holders(static_cast<size_t>(pages_.n_pages()), 0);
  std::vector<size_t> order;
  for (size_t i = 0; i < running_.size(); ++i) {
    order.push_back(i);
    for (const int32_t page : running_[i].table.pages) ++holders[static_cast<size_t>(page)];
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return views[b].rank < views[a].rank; });
  for (const size_t i : order) {
    for (const int32_t page : running_[i].table.pages) {
      if (--holders[static_cast<size_t>(page)] == 0) ++views[i].n_own_pages;
    }
  }
}

int32_t Batch::draft_nodes(const ActiveSequence& member) const {
  if (!member.drafts() || member.route->suspended(static_cast<int32_t>(running_.size())) ||
      member.route->benefit.is_probing()) {
    return 0;
  }
  const Sequence& sequence = *member.sequence;
  const int32_t most = std::min(member.route->draft_nodes_max,
                                sequence.request().draft_nodes_max.value_or(INT32_MAX));
  return draft_budget(most, sequence.n_left(), member.route->chain());
}

// Empty when the rows of the whole prompt are needed.
PrefixCache::Prefix Batch::cached_prefix(const ActiveSequence& next) const {
  if (cache_ == nullptr || !next.may_skip_rows()) return {};
  return cache_->find(next.sequence->request().cache_salt, next.sequence->tokens());
}

Status Batch::carry_out(const StepPlan& plan) {
  if (plan.n_pages_to_reclaim > 0) models_.reclaim(plan.n_pages_to_reclaim);
  // Their text so far is sent, since the wait may be long.
  for (const int32_t index : plan.preempted) {
    Sequence& sequence = *running_[to_size(index)].sequence;
    if (sequence.finish() == FinishReason::kNone) sequence.send();
  }
  const size_t n_before = running_.size();
  running_.reserve(n_before + to_size(plan.n_admitted()));
  std::vector<ActiveSequence> admitted;
  admitted.reserve(to_size(plan.n_admitted()));
  // From here until all are in one of the two lists, nothing may fail for want of memory.
  // Take the planned sequences off the waiting list before the preempted ones are added to it.
  for (int32_t i = 0; i < plan.n_admitted(); ++i) {
    admitted.push_back(std::move(waiting_.extract(waiting_.begin()).mapped()));
  }
  for (const int32_t index : plan.preempted) preempt(running_[to_size(index)]);
  for (ActiveSequence& next : admitted) admit(std::move(next));
  // Attach every prefix before taking pages, so that taking pages evicts none of them.
  for (size_t i = 0; i < admitted.size(); ++i) {
    attach_prefix(running_[n_before + i], plan.admitted[i], cached_[i]);
  }
  Status status;
  for (const PlanItem& item : plan.items) {
    const size_t i = to_size(item.sequence);
    std::vector<int32_t>& table = running_[i].table.pages;
    const auto n_attached = static_cast<ptrdiff_t>(table.size());
    table.reserve(table.size() + to_size(item.n_new_pages));  // or take() might lose a page
    SPECD_CHECK(pages_.take(item.n_new_pages, table), "the plan gives only what is there");
    if (i < n_before || !plan.admitted[i - n_before].copies_page) continue;
    const auto source = table.begin() + n_attached - 1;
    if (status.ok()) status = worker_.copy_page(*source, *(source + 1));
    pages_.release(*source);
    table.erase(source);
  }
  counters_.running = static_cast<int32_t>(running_.size() - plan.preempted.size());
  count_pages();
  return status;
}

void Batch::admit(ActiveSequence next) {
  next.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.push_back(std::move(next));
}

// Gives a sequence the prefix that was planned. Its last page is then one to be copied into the first
// new one, if that was planned.
void Batch::attach_prefix(ActiveSequence& member, const Admission& admission,
                          const PrefixCache::Prefix& cached) {
  Sequence& sequence = *member.sequence;
  std::vector<int32_t>& pages = member.table.pages;
  // Or a page might get a reference that nobody returns.
  pages.reserve(to_size(admission.n_shared_pages) + 1);
  std::vector<int32_t> all;
  if (admission.copies_page) all.reserve(to_size(admission.n_shared_pages) + 1);
  member.n_computed = admission.n_computed;
  if (admission.n_shared_pages > 0) {
    member.chain = cache_->attach(cached, admission.n_shared_pages, pages);
  }
  if (admission.copies_page) {
    cache_->attach(cached, admission.n_shared_pages + 1, all);
    pages.push_back(all.back());
    all.pop_back();
    pages_.release(all);
  }
  if (sequence.started_ns != 0) return;
  sequence.started_ns = now_ns();
  sequence.usage.cached_prompt_tokens = member.n_computed;
  if (cache_ != nullptr && member.may_skip_rows()) {
    counters_.prefix_query_tokens += static_cast<uint64_t>(sequence.size());
  }
  counters_.prefix_hit_tokens += static_cast<uint64_t>(member.n_computed);
}

// The sequence loses its pages and waits again.
void Batch::preempt(ActiveSequence& member) {
  const bool lost = member.draft.state == DrafterSession::State::kLost;
  runner_.end(member, SPECD_END_PREEMPTED);
  if (!lost) member.draft.state = DrafterSession::State::kNotBegun;
  let_go(member);
  member.resumed = true;
  member.n_computed = 0;
  ++member.sequence->usage.preemptions;
  ++counters_.preemptions;
  add_waiting(std::exchange(member, ActiveSequence()));
}

void Batch::settle(const std::function<void(Sequence&)>& go_on) {
  for (ActiveSequence& member : running_) {
    if (member.slot < 0) continue;  // preempted
    keep_prefix(member);
    if (member.sequence->finish() != FinishReason::kNone) {
      retire(member);
    } else {
      go_on(*member.sequence);
    }
  }
  erase_gone();
  count_pages();
}

// Adds full pages to the prefix cache and frees the pages of rejected nodes.
void Batch::keep_prefix(ActiveSequence& member) {
  const Sequence& sequence = *member.sequence;
  std::vector<int32_t>& table = member.table.pages;
  if (cache_ != nullptr && sequence.finish() != FinishReason::kError) {
    cache_->extend(member.chain, sequence.request().cache_salt, sequence.tokens(),
                   std::min(member.n_computed, sequence.size()), table);
  }
  for (const auto keep = static_cast<size_t>(pages_for(int64_t{member.n_computed} + 1));
       table.size() > keep; table.pop_back()) {
    pages_.release(table.back());
  }
}

void Batch::let_go(ActiveSequence& member) {
  if (cache_ != nullptr) cache_->touch(member.chain);
  member.chain = {};
  pages_.release(member.table.pages);
  free_slots_.push_back(member.slot);
  member.slot = -1;
}

// Releases everything before the client gets the last event, so that the client then finds balanced
// counters.
void Batch::retire(ActiveSequence& member) {
  runner_.end(member, is_complete(member.sequence->finish()) ? uint32_t{SPECD_END_FINISHED}
                                                             : uint32_t{SPECD_END_CANCELLED});
  member.route.reset();
  let_go(member);
  count_pages();
  --counters_.running;
  on_end_(*member.sequence);
}

void Batch::list_requests(size_t n_max, RequestList& list) const {
  list.n_running = static_cast<int32_t>(running_.size());
  list.n_waiting = static_cast<int32_t>(n_waiting());
  const uint64_t now = now_ns();
  const auto add = [&](const ActiveSequence& member) {
    if (list.requests.size() >= n_max) return;
    const Sequence& sequence = *member.sequence;
    RequestReport report{.id = sequence.request().id,
                         .number = sequence.number(),
                         .index = sequence.index(),
                         .is_running = member.slot >= 0,
                         .priority = sequence.request().priority,
                         .prompt_tokens = sequence.n_prompt(),
                         .output_tokens = sequence.n_output(),
                         .max_tokens = sequence.request().max_tokens,
                         .kv_pages = static_cast<int32_t>(member.table.pages.size()),
                         .preemptions = sequence.usage.preemptions,
                         .age_ns = now - sequence.arrived_ns,
                         .drafted = sequence.usage.draft_tokens,
                         .accepted = sequence.usage.accepted_tokens};
    if (member.route != nullptr) {
      report.route = member.route->name;
      report.generation = member.route->generation;
      report.is_drafting = member.drafts();
    }
    list.requests.push_back(std::move(report));
  };
  for (const ActiveSequence& member : running_) add(member);
  for (const auto& [rank, next] : waiting_) add(next);
  for (const ActiveSequence& next : followers_) add(next);
}

void Batch::swap_routes(const RouteSwap& swap, RouteChange& done) {
  for (auto& [rank, next] : waiting_) swap_route(next, swap, done);
  for (ActiveSequence& next : followers_) swap_route(next, swap, done);
  for (ActiveSequence& member : running_) swap_route(member, swap, done);
}

void Batch::swap_route(ActiveSequence& member, const RouteSwap& swap, RouteChange& done) {
  const LiveRoute* const from = member.route.get();
  if (from == nullptr || from == swap.to.get() || from->name != swap.route) return;
  const bool attaches = swap.running == RunningRequests::kAttach && swap.to != nullptr &&
                        swap.to->guarantee >= from->guarantee && member.attach_mode(*swap.to) != 0;
  if (!attaches && swap.running != RunningRequests::kDrop) {
    ++done.n_kept;
    return;
  }
  ++(attaches ? done.n_attached : done.n_dropped);
  if (swap.dry_run) return;
  if (member.slot >= 0) runner_.end(member, SPECD_END_SWAPPED);
  member.route = attaches ? RouteLease(swap.to) : RouteLease();
  member.draft.state = DrafterSession::State::kNotBegun;
  member.is_counted_lost = false;
  member.verifier_state = 0;
}

void Batch::set_shadow(LiveRoute& live, std::shared_ptr<LiveRoute> shadow) {
  for (ActiveSequence& member : running_) {
    if (member.route.get() == &live) runner_.end_shadow(member);
  }
  live.shadow = std::move(shadow);
}

void Batch::end_unwanted() {
  const uint64_t now = now_ns();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!it->second.sequence->must_end(now)) {
      ++it;
      continue;
    }
    ActiveSequence next = std::move(it->second);
    it = waiting_.erase(it);
    next.route.reset();
    on_end_(*next.sequence);
  }
  for (ActiveSequence& next : followers_) (void)next.sequence->must_end(now);
  const auto n_left = static_cast<size_t>(
      std::stable_partition(followers_.begin(), followers_.end(),
                            [](const ActiveSequence& next) {
                              return next.sequence->finish() == FinishReason::kNone;
                            }) -
      followers_.begin());
  while (followers_.size() > n_left) {
    ActiveSequence next = std::move(followers_.back());
    followers_.pop_back();
    next.route.reset();
    on_end_(*next.sequence);
  }
  for (ActiveSequence& member : running_) {
    if (member.slot >= 0 && member.sequence->must_end(now)) retire(member);
  }
  erase_gone();
}

void Batch::fail_all(const Status& why) {
  for (auto& [rank, next] : waiting_) fail(*next.sequence, why);
  for (ActiveSequence& next : followers_) fail(*next.sequence, why);
  erase_gone();
  for (ActiveSequence& member : running_) fail(*member.sequence, why);
  counters_.running = static_cast<int32_t>(running_.size());
  end_unwanted();
}

void Batch::fail_running(const Status& why) {
  erase_gone();
  if (running_.empty()) return fail_all(why);
  for (ActiveSequence& member : running_) fail(*member.sequence, why);
  counters_.running = static_cast<int32_t>(running_.size());
  end_unwanted();
}

void Batch::erase_gone() {
  std::erase_if(running_, [](const ActiveSequence& member) { return member.slot < 0; });
}

void Batch::count_pages() {
  counters_.pages_free = pages_.n_free();
  counters_.pages_idle = pages_.n_idle();
}

}  // namespace specd
