// A waiting or running sequence, with everything that a step needs to know about it. [step] only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/spec/live_route.h"
#include "core/kv/block_table.h"
#include "core/kv/prefix_cache.h"
#include "core/request/sequence.h"
#include "core/spec/draft_tree.h"
#include "core/spec/verdict.h"
#include "core/step/compose.h"

namespace specd {

struct ActiveSequence {
  std::unique_ptr<Sequence> sequence;
  RouteLease route;        // empty = off
  BlockTable table;        // pages for the computed positions and for this step
  PrefixChain chain;       // its leading pages that are in the prefix cache
  int32_t slot = -1;       // dense, in [0, max_sequences); -1 = not running
  int32_t n_computed = 0;  // positions whose KV is final

  DrafterSession draft;          // of the route's drafter
  bool is_counted_lost = false;  // in RouteCounters::sequences_lost
  bool resumed = false;          // it ran before and was preempted
  int64_t verifier_state = 0;

  // The current step.
  int32_t n_rows = 0;
  bool wants_token = false;
  int32_t draft_nodes = 0;  // draft budget
  DraftTree tree;
  RowPlace place;
  std::optional<Verdict> verdict;
  int32_t n_taken = 0;  // tokens that this step added to the text

  // Position of the step's last row, from which drafts continue. REQUIRES that the step has rows of
  // it which are not committed yet.
  int32_t root() const { return n_computed + n_rows - 1; }
  int32_t n_pending() const { return sequence->size() - n_computed; }
  // Accepted nodes of the tree; none without a verdict.
  const std::vector<int32_t>& accepted() const {
    static const std::vector<int32_t> none;
    return verdict.has_value() ? verdict->accepted : none;
  }
  // Whether rows that the prefix cache has may be skipped: not while the prompt is scored, and not for
  // a drafter that was promised the hidden states of every row.
  bool may_skip_rows() const {
    if (sequence->scores_prompt()) return false;
    return route == nullptr || draft.state == DrafterSession::State::kLost ||
           !route->reads_hidden() || (route->drafter->caps().attach_modes & SPECD_ATTACH_COLD) != 0;
  }
  // The mode in which the drafter of a route can begin this sequence. 0 = none: it is decoded plainly.
  uint32_t attach_mode(const LiveRoute& its) const {
    const bool hidden = its.reads_hidden();
    const bool is_fresh = !resumed && sequence->size() == sequence->n_prompt();
    if (is_fresh && (!hidden || n_computed == 0)) return SPECD_ATTACH_FRESH;
    const uint32_t modes = its.drafter->caps().attach_modes;
    if (!hidden && (modes & SPECD_ATTACH_TOKENS) != 0) return SPECD_ATTACH_TOKENS;
    return modes & SPECD_ATTACH_COLD;
  }
  bool drafts() const { return route != nullptr && draft.is_on(); }
  // What the drafter of its route, or of that one's shadow, has of it. REQUIRES a slot for a shadow.
  DrafterSession& session(LiveRoute& of) {
    return &of == route.get() ? draft : of.shadow_sessions[static_cast<size_t>(slot)];
  }
};

}  // namespace specd
