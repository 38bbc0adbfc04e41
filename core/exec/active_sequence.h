// A sequence that waits or runs, with everything a step needs to know about it. Owned by the step
// thread.
#pragma once

#include <cstdint>
#include <memory>

#include "core/exec/live_route.h"
#include "core/kv/block_table.h"
#include "core/kv/prefix_cache.h"
#include "core/request/sequence.h"
#include "core/spec/draft_tree.h"

namespace specd {

struct ActiveSequence {
  std::unique_ptr<Sequence> request;
  RouteLease route;        // empty = off
  BlockTable table;        // pages for what is computed and for this step
  PrefixChain chain;       // those of them that the prefix cache has
  int32_t copy_from = -1;  // page to copy into the next one it gets; held
  int32_t slot = -1;       // dense, in [0, max_sequences); -1 = does not run
  int32_t n_computed = 0;  // positions whose KV is final

  enum class Drafting { kNotBegun, kOn, kLost } drafting = Drafting::kNotBegun;
  bool resumed = false;           // it ran before and was preempted
  int32_t n_begun = 0;            // tokens that the drafter got with begin()
  void* drafter_state = nullptr;  // the plugin's
  int64_t verifier_state = 0;

  // The current step.
  DraftTree tree;
  int32_t first_row = 0;  // in the forward: prefill rows, or the root followed by the nodes
  int32_t n_rows = 0;
  bool wants_token = false;
  int32_t draft_nodes = 0;              // may be drafted
  int32_t first_logits = -1;            // index of the root's logits row
  std::vector<int32_t> logits_of_node;  // index of a node's logits row, -1 = none
  std::vector<int32_t> accepted;        // nodes
  int32_t n_taken = 0;                  // tokens that this step added to the text

  int32_t n_pending() const { return request->size() - n_computed; }
  // Whether rows that the prefix cache has may go unseen: not by a drafter that was promised the
  // hidden states of all.
  bool may_skip_rows() const {
    return route == nullptr || drafting == Drafting::kLost ||
           (route->drafter->grant().needs & SPECD_NEED_HIDDEN) == 0 ||
           (route->drafter->caps().attach_modes & SPECD_ATTACH_COLD) != 0;
  }
  // How the drafter meets this sequence; 0 = it cannot, and the sequence is decoded plainly.
  uint32_t attach_mode() const {
    const bool hidden = (route->drafter->grant().needs & SPECD_NEED_HIDDEN) != 0;
    if (!resumed && (!hidden || n_computed == 0)) return SPECD_ATTACH_FRESH;
    const uint32_t modes = route->drafter->caps().attach_modes;
    if (!hidden && (modes & SPECD_ATTACH_TOKENS) != 0) return SPECD_ATTACH_TOKENS;
    return modes & SPECD_ATTACH_COLD;
  }
  bool drafts() const { return route != nullptr && drafting == Drafting::kOn; }
};

}  // namespace specd
