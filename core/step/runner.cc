#include "core/step/runner.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "core/base/clock.h"
#include "core/step/commit.h"
#include "core/step/drafting.h"
#include "core/step/logprobs.h"
#include "core/step/shadow.h"

namespace specd {
namespace {

// Calls a plugin of `route`. False when there is no memory for that; the step then goes on without
// what the plugin would give.
template <typename Fn>
bool has_memory_for(const char* call, LiveRoute& route, const Members& members, Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const std::bad_alloc&) {
  }
  route.counters.cut += members.size();  // which is not the plugin's fault
  route.last_problem.set(std::string(call) + ": " + no_memory_for("the call").to_string());
  return false;
}

void drop_drafts(const Members& members) {
  for (ActiveSequence* member : members) member->tree.clear();
}

// Whether the sequence's verifier works on the host and asks for laws.
bool law_on_host(const ActiveSequence& member) {
  return member.route != nullptr && member.route->reads_law() && !member.route->verifies_on_device;
}

// Tells the routes that ask what a step has cost.
void measure(const Members& members, uint64_t took_ns) {
  Members asking;
  bool has_prompt = false;
  for (ActiveSequence* member : members) {
    has_prompt = has_prompt || member->n_rows != 1 || !member->wants_token;
    if (member->route != nullptr && member->route->suspend_when_slower) asking.push_back(member);
  }
  by_route(asking, [&](LiveRoute& route, const Members& group) {
    MeasuredStep step{.ns = took_ns,
                      .n_running = static_cast<int32_t>(members.size()),
                      .n_sequences = static_cast<int32_t>(group.size()),
                      .has_prompt = has_prompt};
    for (const ActiveSequence* member : asking) {
      const bool is_other = member->route.get() != &route;
      if (is_other && member->route->benefit.is_probing()) step.may_probe = false;
    }
    for (const ActiveSequence* member : group) {
      step.n_tokens += member->n_taken;
      step.has_drafts = step.has_drafts || member->draft_nodes > 0;
    }
    route.measured(step);
  });
}

bool has_ended(const ActiveSequence* member) { return member->sequence->must_end(now_ns()); }

// The planned members, reset for a new step.
Members members_of(const StepPlan& plan, std::vector<ActiveSequence>& running) {
  Members members;
  for (const PlanItem& item : plan.items) {
    ActiveSequence& member = running[to_size(item.sequence)];
    member.n_rows = item.n_rows;
    member.wants_token = item.wants_token;
    member.draft_nodes = item.draft_nodes;
    member.tree.clear();
    member.verdict.reset();
    member.n_taken = 0;
    members.push_back(&member);
  }
  return members;
}

}  // namespace

StepRunner::StepRunner(Worker& worker, ModelService& models, CpuDevice& host)
    : worker_(worker),
      step_{.device = worker.device(),
            .host = host,
            .models = models,
            .vocab_size = worker.model().config().vocab_size,
            .hidden_size = worker.model().config().hidden_size,
            .step_id = 0,
            .calls = {},
            .slots = {},
            .slot_numbers = {}} {}

Result<std::unique_ptr<StepRunner>> StepRunner::create(Worker& worker, ModelService& models,
                                                       CpuDevice& host, int32_t max_sequences) {
  std::unique_ptr<StepRunner> runner(new StepRunner(worker, models, host));
  SPECD_TRY(runner->step_.calls,
            Staging::create(worker.device(), kColumnBytes, "columns of plugin calls"));
  std::vector<int32_t> numbers(to_size(max_sequences));
  std::iota(numbers.begin(), numbers.end(), 0);
  SPECD_TRY(runner->step_.slots,
            Staging::create(worker.device(), Staging::bytes_of<int32_t>(numbers.size()), "slots"));
  runner->step_.slot_numbers = runner->step_.slots.add(numbers);
  runner->step_.slots.upload();
  SPECD_OK_OR_RETURN(worker.device().synchronize());
  return runner;
}

Result<StepCounters> StepRunner::run(const StepPlan& plan, std::vector<ActiveSequence>& running,
                                     const std::function<void()>& meanwhile) {
  ++step_.step_id;
  if (!step_.calls.status().ok()) {  // memory was short in the last step: begin with what is there
    SPECD_OK_OR_RETURN(step_.device.synchronize());
    stream_has_passed();
  }
  bool called = step_.device.is_host();
  const auto call_meanwhile = [&] {
    if (!std::exchange(called, true)) meanwhile();
  };
  const uint64_t start_ns = now_ns();
  StepCounters counters;
  Members members = members_of(plan, running);
  if (!members.empty()) {
    begin_drafting(step_, running);
    Members drafting;
    for (ActiveSequence* member : members) {
      if (member->drafts() && member->draft_nodes > 0 && !has_ended(member)) {
        drafting.push_back(member);
      }
    }
    propose_on_host(drafting, call_meanwhile);
    std::erase_if(members, has_ended);
    // Drafters on the device come last, because the members must not change after them.
    std::erase_if(drafting, [&](ActiveSequence* member) {
      return !member->drafts() ||
             std::find(members.begin(), members.end(), member) == members.end();
    });
    propose_on_device(drafting);
    propose_to_shadows(step_, members, static_cast<int32_t>(running.size()));
  }
  if (members.empty()) {
    call_meanwhile();
    return counters;
  }
  const Status computed = compute(members, call_meanwhile);
  if (computed.code() == Code::kExhausted) {
    // There is no memory for the columns of these rows. The members fail; later steps may be
    // smaller. Where logits were to be copied, which takes most, only those that needed them fail.
    const auto copies = [&](const ActiveSequence* member) {
      return wants_raw(*member) || (member->wants_token && copies_logits(*member));
    };
    const bool some_copy = std::any_of(members.begin(), members.end(), copies);
    for (ActiveSequence* member : members) {
      if (some_copy && !copies(member)) continue;
      member->sequence->fail(FinishReason::kError, computed);
    }
    call_meanwhile();
    SPECD_OK_OR_RETURN(step_.device.synchronize());
    stream_has_passed();
    return counters;
  }
  SPECD_OK_OR_RETURN(computed);
  verify_on_host(members);
  uint64_t n_tokens = 0;
  for (const ActiveSequence* member : members)
    n_tokens += static_cast<uint64_t>(
        std::clamp(member->sequence->n_prompt() - member->n_computed, 0, member->n_rows));
  const KvMoves moves = commit(members, output_.drawn);
  for (const ActiveSequence* member : members) n_tokens += static_cast<uint64_t>(member->n_taken);
  step_tokens_.record(n_tokens);
  report_logprobs(step_.host, members, output_, step_.vocab_size);
  SPECD_OK_OR_RETURN(worker_.move(moves));
  update_drafters(members);
  counters.rows = static_cast<uint64_t>(input_.rows.n_rows());
  counters.kv_moves = moves.from.size();
  const uint64_t took_ns = now_ns() - start_ns;
  step_time_.record(took_ns);
  measure(members, took_ns);
  watch_.record(members, step_.step_id, start_ns + took_ns);
  return counters;
}

void StepRunner::propose_on_host(const Members& drafting, const std::function<void()>& meanwhile) {
  by_route(drafting, [&](LiveRoute& route, const Members& members) {
    if (route.drafts_in_stream()) return;
    if (!route.calls().is_ready()) return;  // a proposal that came too late for its step runs still
    meanwhile();                            // propose() on the host may take long
    const bool has_memory = has_memory_for("propose", route, members, [&] {
      Staging& columns = step_.call_columns();
      Proposal proposal(step_, route, members, columns);
      if (!columns.status().ok()) throw std::bad_alloc();
      if (proposal.call()) proposal.take();
    });
    if (!has_memory) drop_drafts(members);
  });
}

void StepRunner::propose_on_device(const Members& drafting) {
  device_drafts_.clear();
  Staging& columns = worker_.new_columns();
  by_route(drafting, [&](LiveRoute& route, const Members& members) {
    if (!route.drafts_in_stream()) return;
    const bool has_memory = has_memory_for("propose", route, members, [&] {
      device_drafts_.emplace_back(step_, route, members, columns);
    });
    if (!has_memory) drop_drafts(members);
  });
}

Status StepRunner::compute(const Members& members, const std::function<void()>& meanwhile) {
  items_.clear();
  for (const ActiveSequence* member : members) {
    const LiveRoute* const shadow = shadow_of(*member);
    const bool tapped = (member->drafts() && member->route->reads_hidden()) ||
                        (shadow != nullptr && shadow->reads_hidden());
    const bool law = member->wants_token && law_on_host(*member);
    const Scored scored = scored_rows(*member);
    items_.push_back({.tokens = member->sequence->tokens(),
                      .table = &member->table,
                      .tree = &member->tree,
                      .sampling = &member->sequence->sampling(),
                      .seen = member->sequence->seen(),
                      .bias = &member->sequence->logit_bias(),
                      .n_output = member->sequence->n_output(),
                      .n_computed = member->n_computed,
                      .n_rows = member->n_rows,
                      .wants_token = member->wants_token,
                      .tapped = tapped,
                      .law = law,
                      .law_to_host = law,
                      .raw = wants_raw(*member),
                      .first_scored = scored.first,
                      .n_scored = scored.n,
                      .drafted = {}});
  }
  std::vector<StreamPart*> parts;
  for (DeviceDraft& draft : device_drafts_) {
    for (size_t s = 0; s < draft.members().size(); ++s) {
      const auto found = std::find(members.begin(), members.end(), draft.members()[s]);
      ComposeItem& item = items_[static_cast<size_t>(found - members.begin())];
      item.drafted = {.part = static_cast<int32_t>(parts.size()), .first = draft.first_token(s)};
      const LiveRoute& route = *draft.members()[s]->route;
      item.law = item.law || (route.reads_law() && route.verifies_on_device);
    }
    parts.push_back(&draft);
  }
  compose(items_, input_, places_);
  const auto gets = [&](const LiveRoute& route, const ActiveSequence& member) {
    if (member.wants_token) {
      input_.top_k = std::max(input_.top_k, static_cast<int32_t>(route.drafter->caps().top_k));
    }
    input_.taps_to_host = input_.taps_to_host || (route.reads_hidden() && !route.on_device());
  };
  for (const ActiveSequence* member : members) {
    if (member->drafts()) gets(*member->route, *member);
    if (const LiveRoute* const shadow = shadow_of(*member); shadow != nullptr)
      gets(*shadow, *member);
  }
  for (size_t i = 0; i < members.size(); ++i) std::swap(members[i]->place, places_[i]);
  for (DeviceDraft& draft : device_drafts_) draft.prepare_verdict();
  SPECD_OK_OR_RETURN(worker_.run(input_, parts, meanwhile, output_));
  stream_has_passed();
  // Each route is charged for its share of the rows.
  const double ns_per_row = static_cast<double>(output_.forward_ns) / input_.rows.n_rows();
  for (const ActiveSequence* member : members) {
    if (member->route == nullptr) continue;
    const int32_t rows = member->n_rows + static_cast<int32_t>(member->place.logits_of_node.size());
    member->route->counters.forward_ns += static_cast<uint64_t>(ns_per_row * rows);
  }
  for (DeviceDraft& draft : device_drafts_) draft.take(output_.drawn);
  device_drafts_.clear();
  return Status();
}

void StepRunner::stream_has_passed() {
  if (step_.device.is_host()) return;
  step_.models.passed();
  step_.models.step_is_over();
  step_.calls.clear();
}

void StepRunner::verify_on_host(const Members& members) {
  Members judged;
  for (ActiveSequence* member : members) {
    if (!has_ended(member) && member->route != nullptr && member->wants_token &&
        !member->route->verifies_on_device) {
      judged.push_back(member);
    }
  }
  by_route(judged, [&](LiveRoute& route, const Members& group) {
    (void)has_memory_for("verify", route, group, [&] {
      Verification call(step_, route, group, output_, step_.call_columns());
      call.call();
      call.judge({}, output_.drawn);
    });
  });
}

void StepRunner::update_drafters(const Members& members) {
  Members updating;
  for (ActiveSequence* member : members) {
    if (member->sequence->finish() == FinishReason::kNone && member->drafts() &&
        member->route->drafter->has_update()) {
      updating.push_back(member);
    }
  }
  const auto tell = [&](LiveRoute& route, const Members& group) {
    update(step_, route, group, input_, output_);
  };
  by_route(updating, tell);
  Members going_on;
  for (ActiveSequence* member : members) {
    if (member->sequence->finish() == FinishReason::kNone && shadow_of(*member) != nullptr)
      going_on.push_back(member);
  }
  by_shadow(going_on, tell);
}

Status StepRunner::abandon() {
  step_.models.watch(nullptr, false);
  Status passed = step_.device.synchronize();
  device_drafts_.clear();
  if (passed.ok()) stream_has_passed();
  return passed;
}

bool StepRunner::copies_logits(const ActiveSequence& member) const {
  return member.sequence->request().logprobs.has_value() ||
         (law_on_host(member) && !step_.device.is_host());
}

void StepRunner::end(ActiveSequence& member, uint32_t reason) {
  if (member.route == nullptr) return;
  end_session(step_, *member.route, member, reason);
  specd::end_shadow(step_, member, reason);
}

void StepRunner::end_shadow(ActiveSequence& member) {
  specd::end_shadow(step_, member, SPECD_END_SWAPPED);
}

}  // namespace specd
