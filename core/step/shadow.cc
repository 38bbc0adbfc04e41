#include "core/step/shadow.h"

#include <algorithm>
#include <climits>
#include <new>
#include <vector>

#include "core/plugin/instance/tensor.h"
#include "core/spec/budget.h"
#include "core/step/drafting.h"

namespace specd {
namespace {

int32_t budget_of(const LiveRoute& shadow, const ActiveSequence& member) {
  const Sequence& sequence = *member.sequence;
  int32_t most =
      std::min(shadow.draft_nodes_max, sequence.request().draft_nodes_max.value_or(INT32_MAX));
  const std::vector<int32_t>& fixed = shadow.drafter->static_parents();
  if (!fixed.empty()) most = std::min(most, static_cast<int32_t>(fixed.size()));
  return draft_budget(most, sequence.n_left(), shadow.chain());
}

void propose(StepContext& step, LiveRoute& shadow, const Members& members) {
  std::vector<int32_t> root_token, root_position, budget;
  for (const ActiveSequence* member : members) {
    root_token.push_back(member->sequence->tokens().back());
    root_position.push_back(member->root());
    budget.push_back(budget_of(shadow, *member));
  }
  const auto n = static_cast<int64_t>(members.size());
  const specd_tensor root_tokens = host_i32(root_token.data(), {n}),
                     root_positions = host_i32(root_position.data(), {n}),
                     budgets = host_i32(budget.data(), {n});
  PluginBatch batch(members, step.step_id);
  specd_propose_args args{};
  args.struct_size = sizeof(args);
  args.batch = &batch.batch;
  args.root_token = &root_tokens;
  args.root_position = &root_positions;
  args.node_budget = &budgets;
  args.sampling = batch.sampling_ptr.data();
  (void)shadow.calls().propose(args, batch.call);
}

}  // namespace

void propose_to_shadows(StepContext& step, const Members& members, int32_t n_running) {
  try {
    by_shadow(members, [&](LiveRoute& shadow, const Members& its) {
      if (shadow.suspended(n_running)) return;
      Members drafting;
      for (ActiveSequence* member : its) {
        // As the scheduler gives nodes to a sequence: not before its prompt is read.
        const bool is_decoded = member->wants_token && member->n_rows == 1;
        if (is_decoded && budget_of(shadow, *member) > 0) drafting.push_back(member);
      }
      if (!drafting.empty()) propose(step, shadow, drafting);
    });
  } catch (const std::bad_alloc&) {  // it misses the drafts of this step
  }
}

void end_shadow(StepContext& step, ActiveSequence& member, uint32_t reason) {
  if (member.route == nullptr || member.route->shadow == nullptr) return;
  LiveRoute& shadow = *member.route->shadow;
  end_session(step, shadow, member, reason);
  member.session(shadow) = {};
}

}  // namespace specd
