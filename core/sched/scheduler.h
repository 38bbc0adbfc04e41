// What the next step does, as data. Pure: state in, plan out; no device, thread or plugin.
//
// First come, first served. A sequence is admitted when pages for all it may ever need are free, so
// that a running one never waits for memory. Every running sequence that has one pending token
// decodes; the others are prefilled in chunks. One budget of rows pays for roots, draft nodes and
// prefill; while something prefills, drafts get at most half of what the roots leave.
#pragma once

#include <cstdint>
#include <vector>

namespace specd {

struct SchedulerLimits {
  int32_t step_tokens_max = 0;  // >= max_sequences
  int32_t max_sequences = 0;
};

struct RunningView {
  int32_t n_pending = 1;        // committed tokens whose KV is not computed, >= 1
  int32_t draft_nodes_max = 0;  // what it may bring, >= 0
};

struct WaitingView {
  int32_t pages = 0;  // needed over its whole life
  int32_t n_pending = 1;
};

struct PlanItem {
  int32_t sequence = 0;      // index: the running ones, then the admitted
  int32_t n_rows = 0;        // of the pending tokens, >= 1
  bool wants_token = false;  // the last row's logits decide a token
  int32_t draft_nodes = 0;   // may be drafted; > 0 only for decode
};

struct StepPlan {
  int32_t n_admitted = 0;  // from the front of the waiting list
  std::vector<PlanItem> items;
};

StepPlan plan_step(const SchedulerLimits& limits, const std::vector<RunningView>& running,
                   const std::vector<WaitingView>& waiting, int32_t pages_free);

}  // namespace specd
