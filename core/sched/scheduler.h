// What the next step does, as data. A pure function of the state: no device, thread or plugin.
//
// Sequences are served in order of rank, smallest first. A rank never changes, so the first
// sequence always progresses, whatever it takes from others, and none starves.
//
//   rows   One budget pays for roots, draft nodes and prefill. Every decoding sequence gets its
//          root. While any sequence prefills, drafts get at most half of the rows that the roots
//          leave; prefilling sequences share the rest evenly, so that a short prompt does not wait
//          behind a long one. Sequences that score their prompt share the rows of logits that roots,
//          drafts and last rows leave; drafts leave as many as may be copied, or half.
//   pages  Each sequence gets pages for its rows and nodes of this step. When pages are short,
//          reclaimable pages are used first, then drafts are cut, then the running sequence with
//          the largest rank is preempted: it loses its pages and waits again. A waiting sequence
//          is admitted when all its tokens fit beside what the running ones still need; it may
//          preempt sequences with a larger rank.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request/rank.h"

namespace specd {

struct SchedulerLimits {
  int32_t step_tokens_max = 0;  // >= max_sequences
  int32_t logits_rows_max = 0;  // >= max_sequences; roots, nodes, last and scored rows of prompts
  int32_t max_sequences = 0;
  int32_t copied_rows_max = 0;  // rows of logits to copy to host memory, besides one per sequence
};

struct RunningView {
  Rank rank;
  int32_t n_tokens = 1;         // committed
  int32_t n_computed = 0;       // committed tokens that have KV; < n_tokens
  int32_t n_pages = 0;          // held
  int32_t n_own_pages = 0;      // freed when it is preempted after all sequences with a larger rank
  int32_t draft_nodes_max = 0;  // limit for this step, >= 0
  bool scores = false;          // the logits of its pending rows are wanted and copied
  bool copies = false;          // so are those of its root and draft nodes
};

struct WaitingView {
  Rank rank;
  int32_t n_tokens = 1;
  int32_t n_cached_pages = 0;  // full pages of its tokens in the prefix cache
  int32_t n_idle_pages = 0;    // those of n_cached_pages that only the cache holds
  bool scores = false;         // as in RunningView
};

// How a waiting sequence starts to run.
struct Admission {
  int32_t n_computed = 0;      // tokens whose KV is in the prefix cache; < n_tokens
  int32_t n_shared_pages = 0;  // pages shared with the cache
  // The next cached page is copied into its first new page: all tokens are cached, and the row of
  // the last one is recomputed in the copy.
  bool copies_page = false;
};
Admission admission_of(const WaitingView& waiting);

struct PlanItem {
  int32_t sequence = 0;      // index into the running sequences, followed by the admitted
  int32_t n_rows = 0;        // tokens without KV to compute, >= 1
  bool wants_token = false;  // the last row's logits decide a token
  int32_t draft_nodes = 0;   // limit; > 0 only for decode
  int32_t n_new_pages = 0;   // to take for rows and nodes
};

struct StepPlan {
  std::vector<int32_t> preempted;   // running sequences; they have no item
  std::vector<Admission> admitted;  // taken from the front of the waiting list
  std::vector<PlanItem> items;
  // To request from their holders, before the rest of the plan is carried out.
  int32_t n_pages_to_reclaim = 0;
  bool pages_short = false;  // some sequence wanted more than was available

  int32_t n_admitted() const { return static_cast<int32_t>(admitted.size()); }
};

// running: in any order, at most max_sequences. waiting: in order of rank. pages_available: free,
// or held only by the prefix cache. pages_reclaimable: released by their holders on request;
// requested only where that avoids a cut, a wait or a preemption.
StepPlan plan_step(const SchedulerLimits& limits, const std::vector<RunningView>& running,
                   const std::vector<WaitingView>& waiting, int32_t pages_available,
                   int32_t pages_reclaimable);

// Divides `total` among `wants`. No entry gets more than it wants; what an entry does not want is
// shared evenly by the others. Remainders go to the largest wants; among equal wants, to the first.
std::vector<int32_t> share_evenly(const std::vector<int32_t>& wants, int32_t total);

}  // namespace specd
