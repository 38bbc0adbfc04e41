#include "core/step/commit.h"

#include <algorithm>
#include <string>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

// Appends the decided tokens to a sequence that has not ended.
void take(ActiveSequence& member, int32_t root, int32_t drawn, KvMoves& moves) {
  if (drawn < 0) {
    member.verdict.reset();
    member.sequence->fail(FinishReason::kError,
                          Status(Code::kInternal, "the model's logits at position " +
                                                      std::to_string(root) + " are not finite"));
    return;
  }
  std::vector<int32_t> tokens;
  for (const int32_t node : member.accepted()) tokens.push_back(member.tree.token[to_size(node)]);
  tokens.push_back(member.verdict.has_value() ? member.verdict->next_token : drawn);
  member.n_taken = member.sequence->append(tokens.data(), static_cast<int32_t>(tokens.size()));
  plan_compaction(member.table, root, member.accepted(), moves);
  member.n_computed += static_cast<int32_t>(member.accepted().size());
}

// drafted = accepted + rejected + discarded. Discarded are probes, accepted nodes after the end of
// the text, and all drafts of a sequence that had already ended.
void count(ActiveSequence& member, bool ended) {
  const auto probes = std::count_if(member.tree.flags.begin(), member.tree.flags.end(),
                                    [](int32_t f) { return (f & SPECD_NODE_PROBE) != 0; });
  const int64_t drafted = member.tree.size();
  const auto passed = static_cast<int64_t>(member.accepted().size());
  const int64_t kept = std::min<int64_t>(passed, member.n_taken);
  const int64_t discarded = ended ? drafted : probes + (passed - kept);
  const int64_t rejected = drafted - discarded - kept;
  Usage& usage = member.sequence->usage;
  usage.steps += ended ? 0 : 1;
  usage.draft_tokens += drafted;
  usage.accepted_tokens += kept;
  usage.rejected_tokens += rejected;
  usage.discarded_tokens += discarded;
  if (drafted > 0 && !ended && member.sequence->request().records_drafts)
    usage.drafts.push_back({static_cast<int32_t>(drafted), static_cast<int32_t>(kept)});
  if (member.route == nullptr) return;
  RouteCounters& counters = member.route->counters;
  counters.steps += ended ? 0 : 1;
  if (drafted > 0) ++counters.drafts;
  for (int64_t i = 0; i < kept; ++i) ++counters.accepted_at[static_cast<size_t>(i)];
  counters.drafted += static_cast<uint64_t>(drafted);
  counters.accepted += static_cast<uint64_t>(kept);
  counters.rejected += static_cast<uint64_t>(rejected);
  counters.discarded += static_cast<uint64_t>(discarded);
}

}  // namespace

KvMoves commit(const Members& members, const std::vector<int32_t>& drawn) {
  KvMoves moves;
  for (ActiveSequence* member : members) {
    const int32_t root = member->root();
    member->n_computed += member->n_rows;
    if (!member->wants_token) continue;
    const bool ended = member->sequence->finish() != FinishReason::kNone;
    if (ended) {
      member->verdict.reset();
    } else {
      take(*member, root, drawn[to_size(member->place.root_logits)], moves);
    }
    count(*member, ended);
  }
  return moves;
}

}  // namespace specd
