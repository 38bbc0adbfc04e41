#include "core/spec/shadow_counts.h"

#include <cstddef>

namespace specd {

DrafterCall drafter_call(CallKind kind) {
  if (kind == CallKind::kBegin) return DrafterCall::kBegin;
  return kind == CallKind::kUpdate ? DrafterCall::kUpdate : DrafterCall::kPropose;
}

void ShadowCounts::called(CallKind kind, const Status& status, uint64_t took_ns) {
  route_.called(drafter_call(kind), status, took_ns);
}

void ShadowCounts::lost(uint32_t n_sequences, const std::string& why) {
  route_.counters.sequences_lost += n_sequences;
  route_.note_defect(route_.drafter_bundle, why);
  route_.last_problem.set(why);
}

void ShadowCounts::scored(int32_t n_nodes, int32_t n_accepted) {
  RouteCounters& counters = route_.counters;
  ++counters.steps;
  ++counters.drafts;
  counters.drafted += static_cast<uint64_t>(n_nodes);
  counters.accepted += static_cast<uint64_t>(n_accepted);
  counters.rejected += static_cast<uint64_t>(n_nodes - n_accepted);
  for (int32_t depth = 0; depth < n_accepted; ++depth)
    ++counters.accepted_at[static_cast<size_t>(depth)];
}

}  // namespace specd
