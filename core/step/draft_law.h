// Checks what a drafter says that it has drawn from (specd_proposal.q) before a verifier relies on it.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/spec/draft_tree.h"
#include "specd/plugin_api/types.h"

namespace specd {

// What is wrong with the rows that tree.q_row names, or "": a row that is not there, is not a
// distribution, or gives a child no probability; and with `is_no_replace` siblings with the same
// token. `host` does the sums. [step]
std::string q_fault(CpuDevice& host, const specd_tensor& q, const specd_tensor& q_lse,
                    const DraftTree& tree, bool is_no_replace, int32_t vocab_size);

}  // namespace specd
