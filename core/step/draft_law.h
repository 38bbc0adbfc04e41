// Checks what a drafter says that it has drawn from (specd_proposal.q) before a verifier relies on it.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/spec/draft_tree.h"
#include "specd/plugin_api/types.h"

namespace specd {

struct QCheck {
  int32_t n_nodes = 0;  // nodes [0, n_nodes) are good
  std::string fault;    // of the next one; "" = there is none
};

// A node is bad when the row of q that it is drawn from is not there, is not a distribution, or gives it
// no probability; and with `is_no_replace` when it has the token of an elder sibling. What is wrong with
// a row is known before anything is drawn from it, so a tree that is cut there is judged as well as
// any. `q_row` [1 + nodes of the tree]: by the root and the nodes. `host` does the sums. [step]
QCheck check_q(CpuDevice& host, const specd_tensor& q, const specd_tensor& q_lse,
               const DraftTree& tree, const int32_t* q_row, bool is_no_replace, int32_t vocab_size);

}  // namespace specd
