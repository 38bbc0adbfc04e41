#include "core/step/drafting.h"

#include <new>
#include <string>

#include "core/base/clock.h"
#include "core/plugin/instance/tensor.h"
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

void call_begin(StepContext& step, LiveRoute& route, const Members& members, uint32_t attach_mode,
                Losses& losses) {
  PluginBatch batch(members, step.step_id);
  std::vector<uint64_t> offsets{0};
  std::vector<int32_t> tokens;
  std::vector<uint64_t> tenants;
  for (ActiveSequence* member : members) {
    tenants.push_back(member->sequence->tenant());
    const std::vector<int32_t>& history = member->sequence->tokens();
    tokens.insert(tokens.end(), history.begin(), history.end());
    offsets.push_back(tokens.size());
    member->session(route).n_begun = member->sequence->size();
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
  args.tenant = tenants.data();
  const Status placed = place(step, route, batch);
  const uint64_t start_ns = batch.start(route);
  DrafterCalls& calls = route.calls();
  const Status status = placed.ok() ? calls.begin(args, batch.call) : placed;
  const uint64_t took_ns = now_ns() - start_ns;
  // First of all: what the drafter has begun must be ended, whatever fails from here on.
  for (size_t i = 0; i < members.size(); ++i) {
    if (!status.ok() || batch.status[i] != SPECD_OK) continue;
    DrafterSession& session = members[i]->session(route);
    session.drafter_state = states[i];
    session.state = DrafterSession::State::kOn;
  }
  if (placed.ok() && calls.is_immediate()) route.called(DrafterCall::kBegin, status, took_ns);
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i]->session(route).is_on())
      losses.add(*members[i], status.ok() ? batch.why(i) : status.to_string());
  }
}

void begin(StepContext& step, LiveRoute& route, const Members& members, uint32_t attach_mode) {
  Losses losses(route);
  try {
    call_begin(step, route, members, attach_mode, losses);
  } catch (const std::bad_alloc&) {
    const std::string why = no_memory_for("the call").to_string();
    for (ActiveSequence* member : members) {
      if (!member->session(route).is_on()) losses.add(*member, why);
    }
  }
  for (ActiveSequence* member : members) {
    if (member->session(route).is_on()) continue;
    // A drafter keeps nothing for a sequence that it fails in begin(), so end() is not called. Only
    // sessions of draft models may exist.
    // Beside the step there was no room or no memory: it begins later.
    member->session(route).state = route.calls().is_immediate() ? DrafterSession::State::kLost
                                                                : DrafterSession::State::kNotBegun;
    end_session(step, route, *member, SPECD_END_QUARANTINED);
  }
  losses.report("begin");
}

// Not by PluginBatch, which needs memory: without an end a plugin would keep the sequence for ever.
void call_end(StepContext& step, LiveRoute& route, ActiveSequence& member, uint32_t reason) {
  DrafterSession& session = member.session(route);
  const uint64_t seq_id = member.sequence->number();
  const auto slot = static_cast<uint32_t>(member.slot);
  int32_t slot_value = member.slot;
  specd_status status = SPECD_OK;
  const specd_tensor slots = route.on_device()
                                 ? tensor_of(step.device, true, step.slot_column(member.slot), {1})
                                 : host_i32(&slot_value, {1});
  specd_call call;
  specd_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.n_seqs = 1;
  batch.step_id = step.step_id;
  batch.call = &call;
  batch.seq_id = &seq_id;
  batch.seq_state = &session.drafter_state;
  batch.seq_status = &status;
  batch.slot = &slot;
  batch.slots = &slots;
  if (route.on_device()) batch.stream = step.device.native_stream();
  specd_end_args args{};
  args.struct_size = sizeof(args);
  args.reason = reason;
  args.batch = &batch;
  route.calls().end(args, call);
  session = {.state = DrafterSession::State::kLost};
}

// The sequences of which their drafter, beside the step, has lost track are decoded plainly or begin again.
void note_losses(LiveRoute& route, const Members& members) {
  Losses losses(route);
  uint64_t n_behind = 0;
  for (ActiveSequence* member : members) {
    DrafterSession& session = member->session(route);
    if (!session.is_on()) continue;
    const SequenceLoss loss =
        route.calls().loss_of(static_cast<uint32_t>(member->slot), member->sequence->number());
    if (loss == SequenceLoss::kNone) continue;
    session = {.state = loss == SequenceLoss::kMayBegin ? DrafterSession::State::kNotBegun
                                                        : DrafterSession::State::kLost};
    if (loss == SequenceLoss::kFinal) losses.add(*member, route.calls().why_lost());
    n_behind += loss == SequenceLoss::kMayBegin ? 1 : 0;
  }
  losses.report("begin or update");
  if (n_behind == 0) return;
  const std::string text =
      std::to_string(n_behind) + " requests begin again later: " + route.calls().why_lost();
  if (!route.is_shadow()) route.last_problem.set(text);
  log_because_of(route.drafter->owner().plugin, LogLevel::kWarn,
                 "route " + route.name + ": " + text);
}

// Asks the drafters beside the step how their calls have ended.
void look_beside(const Members& members) {
  by_route(members, [](LiveRoute& route, const Members& of_route) {
    const auto look = [&](LiveRoute& at) {
      if (at.beside == nullptr || at.is_condemned()) return;
      if (const Status status = at.calls().take_answers(); !status.ok())
        return at.condemn(status.message());
      note_losses(at, of_route);
    };
    look(route);
    if (route.shadow != nullptr) look(*route.shadow);
  });
}

void begin_all(StepContext& step, LiveRoute& route, const Members& members) {
  if (!route.calls().may_begin()) return;
  for (const uint32_t mode :
       {uint32_t{SPECD_ATTACH_FRESH}, uint32_t{SPECD_ATTACH_TOKENS}, uint32_t{SPECD_ATTACH_COLD}}) {
    Members same;
    for (ActiveSequence* member : members) {
      if (member->attach_mode(route) == mode) same.push_back(member);
    }
    if (!same.empty()) begin(step, route, same, mode);
  }
  for (ActiveSequence* member : members) {
    // The drafter has no attach mode for this sequence. It has not failed, so this is no loss.
    if (member->attach_mode(route) == 0)
      member->session(route).state = DrafterSession::State::kLost;
  }
}

}  // namespace

void begin_drafting(StepContext& step, std::vector<ActiveSequence>& running) {
  Members routed;
  for (ActiveSequence& each : running) {
    if (each.route != nullptr) routed.push_back(&each);
  }
  look_beside(routed);
  const uint64_t now = now_ns();
  Members fresh;
  for (ActiveSequence* each : routed) {
    const bool rests = each->route->rests(now);
    if (each->draft.state == DrafterSession::State::kNotBegun && !rests) fresh.push_back(each);
    if (!rests || each->draft.state == DrafterSession::State::kLost) continue;
    // The calls that it misses from here on would leave its state out of step with the text.
    if (each->drafts()) end_session(step, *each->route, *each, SPECD_END_QUARANTINED);
    count_lost(*each);
  }
  by_route(fresh,
           [&](LiveRoute& route, const Members& members) { begin_all(step, route, members); });
  by_route(routed, [&](LiveRoute& route, const Members& members) {
    if (route.shadow == nullptr) return;
    LiveRoute& shadow = *route.shadow;
    Members unseen;
    for (ActiveSequence* member : members) {
      DrafterSession& session = member->session(shadow);
      if (shadow.rests(now)) {
        end_session(step, shadow, *member, SPECD_END_QUARANTINED);
        session = {};
      } else if (session.state == DrafterSession::State::kNotBegun) {
        unseen.push_back(member);
      }
    }
    if (!unseen.empty()) begin_all(step, shadow, unseen);
  });
}

void end_session(StepContext& step, LiveRoute& route, ActiveSequence& member, uint32_t reason) {
  if (member.session(route).is_on()) call_end(step, route, member, reason);
  if (!route.is_shadow()) step.models.end(member.sequence->number());
}

}  // namespace specd
