// What a step decided becomes the sequences' text: verdicts and drawn tokens in, appended tokens
// and moves of KV out. Pure but for the sequences' own sinks and counters; no device, no plugin.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/plugin_batch.h"

namespace specd {

// Slots whose KV has to move so that accepted nodes follow their roots.
struct KvMoves {
  std::vector<int32_t> from, to;
};

// Appends for every member that wants a token: the accepted nodes and the verdict's token, or
// without a verdict the token drawn at the root. `drawn`: of the step, see StepOutput. A member
// whose logits are not finite fails; one that has ended meanwhile takes nothing. Counts drafts in
// usage and routes.
KvMoves commit(const Members& members, const std::vector<int32_t>& drawn);

}  // namespace specd
