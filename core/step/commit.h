// Appends what a step decided to the texts: verdicts and drawn tokens in, appended tokens and KV
// moves out. Changes only the sequences and the counters; no device, no plugin.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/plugin_batch.h"

namespace specd {

// Appends to every member that wants a token: the accepted nodes and the verdict's token, or,
// without a verdict, the token drawn at the root. `drawn`: see StepOutput. A member whose logits
// are not finite fails. A member that has ended meanwhile gets nothing. Counts the drafts in the
// usage and the route.
KvMoves commit(const Members& members, const std::vector<int32_t>& drawn);

}  // namespace specd
