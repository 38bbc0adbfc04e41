// A running sequence with everything a step needs to know about it. Owned by the step thread.
#pragma once

#include <cstdint>
#include <memory>

#include "core/exec/live_route.h"
#include "core/kv/block_table.h"
#include "core/request/sequence.h"
#include "core/spec/draft_tree.h"

namespace specd {

struct ActiveSequence {
  std::unique_ptr<Sequence> request;
  RouteLease route;        // empty = off
  BlockTable table;        // pages for its whole life
  int32_t slot = -1;       // dense, in [0, max_sequences)
  int32_t n_computed = 0;  // positions whose KV is final

  enum class Drafting { kNotBegun, kOn, kLost } drafting = Drafting::kNotBegun;
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
  bool drafts() const { return route != nullptr && drafting == Drafting::kOn; }
};

}  // namespace specd
