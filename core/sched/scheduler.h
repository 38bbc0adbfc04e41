// What the next step does, as data. Pure: state in, plan out; no device, thread or plugin.
//
// Order: who has the smaller rank goes first. A rank never changes, so the first of all always
// progresses, whatever it takes from others, and nobody starves.
//   rows   One budget pays for roots, draft nodes and prefill. Every decoding sequence gets its
//   root.
//          While something prefills, drafts get at most half of what the roots leave; prefilling
//          sequences share the rest evenly, so that a short prompt does not wait behind a long one.
//   pages  Each sequence gets pages for the rows and nodes of this step. When they are short,
//          what is reclaimable goes first, then drafts are cut, then the running sequence with the
//          largest rank is preempted: it loses its pages and waits again. A waiting one is admitted
//          when all its tokens find room beside what the running ones still need, and may preempt
//          those with a larger rank.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request/rank.h"

namespace specd {

struct SchedulerLimits {
  int32_t step_tokens_max = 0;  // >= max_sequences
  int32_t logits_rows_max = 0;  // >= max_sequences; roots, nodes and last rows of prompts
  int32_t max_sequences = 0;
};

struct RunningView {
  Rank rank;
  int32_t n_tokens = 1;         // committed
  int32_t n_computed = 0;       // of those, with KV; < n_tokens
  int32_t n_pages = 0;          // held
  int32_t n_own_pages = 0;      // freed when it lets go after all with a larger rank have
  int32_t draft_nodes_max = 0;  // what it may bring, >= 0
};

struct WaitingView {
  Rank rank;
  int32_t n_tokens = 1;
  int32_t n_cached_pages = 0;  // full pages of its tokens that the prefix cache has
  int32_t n_idle_pages = 0;    // of those, that only the cache holds
};

// How a waiting sequence starts to run.
struct Admission {
  int32_t n_computed = 0;      // tokens whose KV the prefix cache has; < n_tokens
  int32_t n_shared_pages = 0;  // pages that it shares with the cache
  // The next cached page is copied into its first new one: all its tokens are cached, and the last
  // one's row is computed again, in a page of its own.
  bool copies_page = false;
};
Admission admission_of(const WaitingView& waiting);

struct PlanItem {
  int32_t sequence = 0;      // index: the running ones, then the admitted
  int32_t n_rows = 0;        // of the tokens without KV, >= 1
  bool wants_token = false;  // the last row's logits decide a token
  int32_t draft_nodes = 0;   // may be drafted; > 0 only for decode
  int32_t n_new_pages = 0;   // to take for rows and nodes
};

struct StepPlan {
  std::vector<int32_t> preempted;  // running ones; in no item
  std::vector<Admission> admitted;  // the first of the waiting list
  std::vector<PlanItem> items;
  // To be had from those that give them up when asked; before anything else of the plan is done.
  int32_t n_pages_to_reclaim = 0;
  bool pages_short = false;  // somebody wanted more than was available

  int32_t n_admitted() const { return static_cast<int32_t>(admitted.size()); }
};

// running: any order, at most max_sequences. waiting: in order of rank. pages_available: free, or
// held by the prefix cache alone. pages_reclaimable: what others give up when asked; it is asked
// for only where that spares a cut, a wait or a preemption.
StepPlan plan_step(const SchedulerLimits& limits, const std::vector<RunningView>& running,
                   const std::vector<WaitingView>& waiting, int32_t pages_available,
                   int32_t pages_reclaimable);

// Shares `total` among `wants`: nobody gets more than it wants, and what one does not want goes to
// the others evenly; what is left of an even share goes to the first ones.
std::vector<int32_t> share_evenly(const std::vector<int32_t>& wants, int32_t total);

}  // namespace specd
