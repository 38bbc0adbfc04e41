// The waiting and the running sequences, with their pages. Plans the next step, hands out the
// planned pages and slots, and takes back those that are no longer needed.
// [step] all functions except counters().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/services/model.h"
#include "core/kv/page_pool.h"
#include "core/kv/prefix_cache.h"
#include "core/engine/routes/swap.h"
#include "core/ranks/worker.h"
#include "core/request/rank.h"
#include "core/sched/scheduler.h"
#include "core/step/active_sequence.h"
#include "core/step/runner.h"

namespace specd {

// Written by the step thread, read by reports.
struct BatchCounters {
  std::atomic<int32_t> running{0}, pages_free{0}, pages_idle{0};
  std::atomic<uint64_t> preemptions{0};
  std::atomic<uint64_t> prefix_query_tokens{0}, prefix_hit_tokens{0};
};

class Batch {
 public:
  // Called when a sequence has ended and holds nothing, before its last event is sent.
  using OnEnd = std::function<void(Sequence&)>;

  // All must outlive this. A null `cache` = no prefix cache.
  Batch(const SchedulerLimits& limits, PagePool& pages, PrefixCache* cache, ModelService& models,
        Worker& worker, StepRunner& runner, OnEnd on_end);

  // Takes over a sequence; a choice behind the first is kept for start_followers(). Ends it with an
  // error when there is no memory for it.
  void add(ActiveSequence next);
  size_t n_waiting() const { return waiting_.size() + followers_.size(); }
  bool empty() const { return waiting_.empty() && running_.empty() && followers_.empty(); }
  std::vector<ActiveSequence>& running() { return running_; }

  // Before plan(): lets the choices of a request wait for a place once the first has read the prompt.
  void start_followers();
  // Plans the next step: decides admissions, prefixes and preemptions. Changes no sequence.
  StepPlan plan();
  // Carries out what the last plan() decided, up to taking the pages of its items. An error means
  // that the device has failed.
  Status carry_out(const StepPlan& plan);
  // After the step: adds full pages to the prefix cache, frees those of rejected nodes, and removes
  // the sequences that have ended. Calls `go_on` for the others.
  void settle(const std::function<void(Sequence&)>& go_on);
  // Between two steps: gives the requests of a route that have another version than swap.to that one, or
  // none, and counts them. Needs no memory.
  void swap_routes(const RouteSwap& swap, RouteChange& done);
  // Between two steps: gives the requests of `live` another shadow, or none. Needs no memory.
  void set_shadow(LiveRoute& live, std::shared_ptr<LiveRoute> shadow);
  // Between two steps: what runs and waits, the running ones first.
  void list_requests(size_t n_max, RequestList& list) const;
  // Ends the sequences that are cancelled or past their deadline.
  void end_unwanted();
  // Ends all sequences with the error `why`: the device has failed, and their KV is lost.
  void fail_all(const Status& why);
  // The same for the running ones, which a step has left half done; when none runs, for all. Keeps
  // nothing of them in the prefix cache. May be called wherever one of these functions has thrown
  // std::bad_alloc, also this one.
  void fail_running(const Status& why);
  // Updates the page counters.
  void count_pages();

  const BatchCounters& counters() const { return counters_; }

 private:
  void add_waiting(ActiveSequence next);
  void end_without_memory(ActiveSequence& next);
  int32_t draft_nodes(const ActiveSequence& member) const;
  PrefixCache::Prefix cached_prefix(const ActiveSequence& next) const;
  void count_own_pages(std::vector<RunningView>& views) const;
  void preempt(ActiveSequence& member);
  void admit(ActiveSequence next);
  void attach_prefix(ActiveSequence& member, const Admission& admission,
                     const PrefixCache::Prefix& cached);
  void swap_route(ActiveSequence& member, const RouteSwap& swap, RouteChange& done);
  void keep_prefix(ActiveSequence& member);
  void let_go(ActiveSequence& member);
  void retire(ActiveSequence& member);
  void erase_gone();

  const SchedulerLimits limits_;
  PagePool& pages_;
  PrefixCache* const cache_;
  ModelService& models_;
  Worker& worker_;
  StepRunner& runner_;
  const OnEnd on_end_;
  std::map<Rank, ActiveSequence> waiting_;
  std::vector<ActiveSequence> running_;
  std::vector<ActiveSequence> followers_;
  std::vector<int32_t> free_slots_;
  std::vector<PrefixCache::Prefix> cached_;  // of the waiting sequences in plan()
  BatchCounters counters_;
};

}  // namespace specd
