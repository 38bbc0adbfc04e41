#include "core/step/drafting.h"

#include <string>

#include "core/step/losses.h"

namespace specd {
namespace {

// Uploads the slots for a drafter that works on the device.
Status place(StepContext& step, const LiveRoute& route, PluginBatch& batch) {
  if (!route.on_device()) return Status();
  Staging& columns = step.call_columns();
  SPECD_OK_OR_RETURN(batch.place_on(step.device, columns));
  columns.upload();
  return Status();
}

void begin(StepContext& step, LiveRoute& route, const Members& members, uint32_t attach_mode) {
  PluginBatch batch(members, step.step_id);
  std::vector<uint64_t> offsets{0};
  std::vector<int32_t> tokens;
  for (ActiveSequence* member : members) {
    const std::vector<int32_t>& history = member->sequence->tokens();
    tokens.insert(tokens.end(), history.begin(), history.end());
    offsets.push_back(tokens.size());
    member->n_begun = member->sequence->size();
  }
  std::vector<void*> states(members.size(), nullptr);
  batch.batch.seq_state = nullptr;
  specd_begin_args args{};
  args.struct_size = sizeof(args);
  args.attach_mode = attach_mode;
  args.batch = &batch.batch;
  args.token_offsets = offsets.data();
  args.tokens = tokens.data();
  args.sampling = batch.sampling_ptr.data();
  args.seq_state = states.data();
  const Status placed = place(step, route, batch);
  const uint64_t start_ns = batch.start(route);
  const Status status = placed.ok() ? route.drafter->begin(args, batch.call) : placed;
  if (placed.ok()) route.called(DrafterCall::kBegin, status, start_ns);
  Losses losses;
  for (size_t i = 0; i < members.size(); ++i) {
    ActiveSequence& member = *members[i];
    member.drafter_state = states[i];
    member.drafting = ActiveSequence::Drafting::kOn;
    if (status.ok() && batch.status[i] == SPECD_OK) continue;
    // A drafter keeps nothing for a sequence that it fails in begin(), so end() is not called. Only
    // sessions of draft models may exist.
    member.drafting = ActiveSequence::Drafting::kLost;
    end_drafting(step, member, SPECD_END_QUARANTINED);
    losses.add(status.ok() ? batch.why(i) : status.to_string());
  }
  losses.report(route, "begin");
}

void call_end(StepContext& step, ActiveSequence& member, uint32_t reason) {
  PluginBatch batch({&member}, step.step_id);
  specd_end_args args{};
  args.struct_size = sizeof(args);
  args.reason = reason;
  args.batch = &batch.batch;
  if (member.route->on_device()) batch.place_on(step.device, step.slot_column(member.slot));
  member.route->drafter->end(args, batch.call);
  member.drafting = ActiveSequence::Drafting::kLost;
  member.drafter_state = nullptr;
}

}  // namespace

void begin_drafting(StepContext& step, std::vector<ActiveSequence>& running) {
  const uint64_t now = now_ns();
  Members fresh;
  for (ActiveSequence& each : running) {
    if (each.route == nullptr) continue;
    const bool is_open = each.route->breaker.is_open(now);
    if (each.drafting == ActiveSequence::Drafting::kNotBegun && !is_open) fresh.push_back(&each);
    // The calls that it misses from here on would leave its state out of step with the text.
    if (is_open && each.drafts()) {
      end_drafting(step, each, SPECD_END_QUARANTINED);
      ++each.route->counters.sequences_lost;
    }
  }
  by_route(fresh, [&](LiveRoute& route, const Members& members) {
    for (const uint32_t mode : {uint32_t{SPECD_ATTACH_FRESH}, uint32_t{SPECD_ATTACH_TOKENS},
                                uint32_t{SPECD_ATTACH_COLD}}) {
      Members same;
      for (ActiveSequence* member : members) {
        if (member->attach_mode() == mode) same.push_back(member);
      }
      if (!same.empty()) begin(step, route, same, mode);
    }
  });
  for (ActiveSequence* member : fresh) {
    // The drafter has no attach mode for this sequence.
    if (member->drafting == ActiveSequence::Drafting::kNotBegun) {
      member->drafting = ActiveSequence::Drafting::kLost;
    }
  }
}

void end_drafting(StepContext& step, ActiveSequence& member, uint32_t reason) {
  if (member.drafts()) call_end(step, member, reason);
  step.models.end(member.sequence->number());
}

}  // namespace specd
