#include "core/exec/step.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/plugin/sanitizer.h"
#include "core/plugin/tensor.h"
#include "core/spec/budget.h"

namespace specd {

namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Sequences that a drafter failed in one call: counted one by one, told in one line.
struct Losses {
  uint64_t n = 0;
  std::string first;

  void add(const std::string& why) {
    if (n++ == 0) first = why;
  }
  void tell(LiveRoute& route, const char* call) const {
    if (n == 0) return;
    route.counters.sequences_lost += n;
    route.last_problem.set(std::string(call) + ": " + first);
    log(LogLevel::kWarn, "route " + route.name + ": " + call + ": " + std::to_string(n) +
                             " requests go on without drafts: " + first);
  }
};

}  // namespace

// The members of a batch as the boundary wants them. Lives for one call.
struct StepRunner::Group {
  specd_call call;
  std::vector<uint64_t> seq_id;
  std::vector<void*> state;
  std::vector<specd_status> status;
  std::vector<uint32_t> slot;
  std::vector<int32_t> slot_column;
  std::vector<specd_sampling> sampling;
  std::vector<const specd_sampling*> sampling_ptr;
  specd_tensor slots{};
  specd_batch batch{};

  Group(const Members& members, uint64_t step_id) {
    const size_t n = members.size();
    for (const ActiveSequence* member : members) {
      const Sequence& request = *member->request;
      const SamplingParams& params = request.request().sampling;
      seq_id.push_back(request.number());
      state.push_back(member->drafter_state);
      slot.push_back(static_cast<uint32_t>(member->slot));
      slot_column.push_back(member->slot);
      specd_sampling each{};
      each.struct_size = sizeof(each);
      each.flags = params.temperature == 0 ? uint32_t{SPECD_SAMPLE_GREEDY} : 0u;
      each.temperature = params.temperature;
      each.top_p = params.top_p;
      each.top_k = params.top_k;
      each.seed = params.seed;
      each.tokens_left = static_cast<uint64_t>(std::max(request.n_left(), 0));
      sampling.push_back(each);
    }
    for (const specd_sampling& each : sampling) sampling_ptr.push_back(&each);
    status.assign(n, SPECD_OK);
    slots = host_i32(slot_column.data(), {static_cast<int64_t>(n)});
    batch.struct_size = sizeof(batch);
    batch.n_seqs = static_cast<uint32_t>(n);
    batch.step_id = step_id;
    batch.call = &call;
    batch.seq_id = seq_id.data();
    batch.seq_state = state.data();
    batch.seq_status = status.data();
    batch.slot = slot.data();
    batch.slots = &slots;
    call.batch = &batch;
    call.sampling = sampling_ptr.data();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::string why(size_t i) const {
    const auto text = call.sequence_text.find(static_cast<int32_t>(i));
    return "status " + std::to_string(status[i]) +
           (text == call.sequence_text.end() ? "" : ": " + text->second);
  }
};

uint32_t StepRunner::update_rows_max(uint32_t max_depth) { return std::max(max_depth + 1, 16u); }

StepRunner::StepRunner(Device& device, Transformer& model, KvStore& kv, ModelService& draft_models)
    : device_(device), model_(model), kv_(kv), draft_models_(draft_models) {}

template <typename Fn>
void StepRunner::by_route(const Members& members, Fn&& fn) {
  std::vector<LiveRoute*> routes;
  for (const ActiveSequence* member : members) {
    if (std::find(routes.begin(), routes.end(), member->route.get()) == routes.end()) {
      routes.push_back(member->route.get());
    }
  }
  for (LiveRoute* route : routes) {
    Members group;
    for (ActiveSequence* member : members) {
      if (member->route.get() == route) group.push_back(member);
    }
    fn(*route, group);
  }
}

StepCounters StepRunner::run(const StepPlan& plan, std::vector<ActiveSequence>& running) {
  ++step_id_;
  StepCounters counters;
  if (plan.items.empty()) return counters;
  const uint64_t start_ns = now_ns();

  Members members, drafting, routed;
  const auto ended = [](const ActiveSequence* member) {
    return member->request->must_end(now_ns());
  };
  for (const PlanItem& item : plan.items) {
    ActiveSequence& sequence = running[at(item.sequence)];
    sequence.n_rows = item.n_rows;
    sequence.wants_token = item.wants_token;
    sequence.draft_nodes = item.draft_nodes;
    sequence.tree.clear();
    sequence.accepted.clear();
    sequence.n_taken = 0;
    members.push_back(&sequence);
  }
  begin_new(running);
  for (ActiveSequence* member : members) {
    if (member->drafts() && member->draft_nodes > 0 && !ended(member)) drafting.push_back(member);
  }
  by_route(drafting, [&](LiveRoute& route, const Members& group) { propose(route, group); });
  std::erase_if(members, ended);
  if (members.empty()) return counters;
  build_rows(members);
  forward(members);
  draw(members);
  for (ActiveSequence* member : members) {
    if (!ended(member) && member->route != nullptr && member->wants_token) routed.push_back(member);
  }
  by_route(routed, [&](LiveRoute& route, const Members& group) { verify(route, group); });
  counters.rows = static_cast<uint64_t>(rows_.n_rows());
  counters.kv_moves = commit(members);

  Members updating;
  for (ActiveSequence* member : members) {
    counters.tokens += static_cast<uint64_t>(member->n_taken);
    if (member->request->finish() == FinishReason::kNone && member->drafts()) {
      updating.push_back(member);
    }
  }
  by_route(updating, [&](LiveRoute& route, const Members& group) { update(route, group); });
  metrics_.step_time.record(now_ns() - start_ns);
  return counters;
}

void StepRunner::begin_new(std::vector<ActiveSequence>& running) {
  Members fresh;
  for (ActiveSequence& sequence : running) {
    if (sequence.route != nullptr && sequence.drafting == ActiveSequence::Drafting::kNotBegun) {
      fresh.push_back(&sequence);
    }
  }
  by_route(fresh, [&](LiveRoute& route, const Members& members) {
    for (const uint32_t mode : {uint32_t{SPECD_ATTACH_FRESH}, uint32_t{SPECD_ATTACH_TOKENS},
                                uint32_t{SPECD_ATTACH_COLD}}) {
      Members same;
      for (ActiveSequence* member : members) {
        if (member->attach_mode() == mode) same.push_back(member);
      }
      if (!same.empty()) begin(route, same, mode);
    }
  });
  for (ActiveSequence* member : fresh) {
    // Its drafter begins only where texts begin.
    if (member->drafting == ActiveSequence::Drafting::kNotBegun) {
      member->drafting = ActiveSequence::Drafting::kLost;
    }
  }
}

void StepRunner::begin(LiveRoute& route, const Members& members, uint32_t attach_mode) {
  Group group(members, step_id_);
  std::vector<uint64_t> offsets{0};
  std::vector<int32_t> tokens;
  for (ActiveSequence* member : members) {
    const std::vector<int32_t>& history = member->request->tokens();
    tokens.insert(tokens.end(), history.begin(), history.end());
    offsets.push_back(tokens.size());
    member->n_begun = member->request->size();
  }
  std::vector<void*> states(members.size(), nullptr);
  group.batch.seq_state = nullptr;
  specd_begin_args args{};
  args.struct_size = sizeof(args);
  args.attach_mode = attach_mode;
  args.batch = &group.batch;
  args.token_offsets = offsets.data();
  args.tokens = tokens.data();
  args.sampling = group.sampling_ptr.data();
  args.seq_state = states.data();
  const Status status = route.drafter->begin(args, group.call);
  Losses losses;
  for (size_t i = 0; i < members.size(); ++i) {
    ActiveSequence& member = *members[i];
    member.drafter_state = states[i];
    member.drafting = ActiveSequence::Drafting::kOn;
    if (status.ok() && group.status[i] == SPECD_OK) continue;
    // begin() keeps nothing for a sequence it fails, so there is nothing to end.
    member.drafting = ActiveSequence::Drafting::kLost;
    end(member, SPECD_END_QUARANTINED);  // what begin() has fed to draft models
    losses.add(status.ok() ? group.why(i) : status.to_string());
  }
  losses.tell(route, "begin");
}

void StepRunner::propose(LiveRoute& route, const Members& members) {
  const int64_t n = static_cast<int64_t>(members.size());
  const int64_t capacity = route.drafter->grant().max_nodes;
  const bool probes = (route.drafter->grant().needs & SPECD_NEED_PROBES) != 0;
  Group group(members, step_id_);
  const std::vector<int32_t>& fixed = route.drafter->static_parents();
  std::vector<int32_t> root_token, root_position, budget, n_nodes(members.size(), 0);
  std::vector<int32_t> token(static_cast<size_t>(n * capacity), 0), parent(token.size(), 0),
      flags(token.size(), 0);
  for (const ActiveSequence* member : members) {
    root_token.push_back(member->request->tokens().back());
    root_position.push_back(member->n_computed);
    budget.push_back(std::min(member->draft_nodes, static_cast<int32_t>(capacity)));
    if (!fixed.empty()) budget.back() = std::min(budget.back(), static_cast<int32_t>(fixed.size()));
  }
  const auto preset_parents = [&] {
    for (int64_t s = 0; s < n; ++s) {
      for (int64_t i = 0; i < capacity; ++i) {
        parent[static_cast<size_t>(s * capacity + i)] = static_cast<size_t>(i) < fixed.size()
                                                            ? fixed[static_cast<size_t>(i)]
                                                            : static_cast<int32_t>(i) - 1;
      }
    }
  };
  const bool variable = route.drafter->caps().tree_mode == SPECD_TREE_VARIABLE;
  if (!variable) preset_parents();

  specd_tensor root_token_t = host_i32(root_token.data(), {n});
  specd_tensor root_position_t = host_i32(root_position.data(), {n});
  specd_tensor budget_t = host_i32(budget.data(), {n});
  specd_tensor n_nodes_t = host_i32(n_nodes.data(), {n});
  specd_tensor token_t = host_i32(token.data(), {n, capacity});
  specd_tensor parent_t = host_i32(parent.data(), {n, capacity});
  specd_tensor flags_t = host_i32(flags.data(), {n, capacity});
  specd_proposal proposal{};
  proposal.struct_size = sizeof(proposal);
  proposal.node_capacity = static_cast<uint32_t>(capacity);
  proposal.n_nodes = &n_nodes_t;
  proposal.token = &token_t;
  proposal.parent = &parent_t;
  proposal.flags = probes ? &flags_t : nullptr;
  // The plugin gets copies of what it only reads: the host goes on with its own.
  const std::vector<int32_t> budget_given = budget;
  specd_propose_args args{};
  args.struct_size = sizeof(args);
  args.batch = &group.batch;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.node_budget = &budget_t;
  if ((route.drafter->grant().needs & SPECD_NEED_HOST_TOKENS) != 0) {
    args.host_root_token = root_token.data();
    args.host_root_position = root_position.data();
    args.host_node_budget = budget.data();
  }
  args.sampling = group.sampling_ptr.data();
  args.out = &proposal;
  const Status status = route.drafter->propose(args, group.call);
  if (!status.ok()) {
    route.cut(members.size(), status.to_string());
    return;  // decode plainly
  }
  if (!variable) preset_parents();  // not the plugin's to write

  TreeLimits limits{.vocab_size = model_.config().vocab_size,
                    .node_budget = 0,
                    .max_depth = static_cast<int32_t>(route.drafter->grant().max_depth),
                    .probes = probes};
  std::vector<int32_t> depth(static_cast<size_t>(capacity));
  for (size_t s = 0; s < members.size(); ++s) {
    if (group.status[s] != SPECD_OK && group.status[s] != SPECD_E_DEADLINE) {
      route.cut(1, "propose: " + group.why(s));
      continue;
    }
    limits.node_budget = budget_given[s];
    const size_t first = s * static_cast<size_t>(capacity);
    const TreeCheck check = check_tree(n_nodes[s], &token[first], &parent[first],
                                       probes ? &flags[first] : nullptr, limits, depth.data());
    if (check.defect != Defect::kNone) {
      route.cut(1, std::string("propose: ") + defect_name(check.defect) + " at node " +
                       std::to_string(check.node));
    }
    DraftTree& tree = members[s]->tree;
    const auto count = static_cast<ptrdiff_t>(check.n_nodes);
    const auto begin = static_cast<ptrdiff_t>(first);
    tree.token.assign(token.begin() + begin, token.begin() + begin + count);
    tree.parent.assign(parent.begin() + begin, parent.begin() + begin + count);
    tree.flags.assign(flags.begin() + begin, flags.begin() + begin + count);
    tree.depth.assign(depth.begin(), depth.begin() + count);
  }
}

void StepRunner::build_rows(const Members& members) {
  rows_.clear();
  tap_row_of_.clear();
  std::vector<int32_t> path;
  const auto add_row = [&](const ActiveSequence& member, int32_t token, int32_t position,
                           int32_t slot, int32_t span, int32_t table) {
    const bool tapped =
        member.drafts() && (member.route->drafter->grant().needs & SPECD_NEED_HIDDEN) != 0;
    tap_row_of_.push_back(tapped ? static_cast<int32_t>(rows_.tap_rows.size()) : -1);
    if (tapped) rows_.tap_rows.push_back(rows_.n_rows());
    rows_.token.push_back(token);
    rows_.position.push_back(position);
    rows_.slot.push_back(member.table.physical(slot));
    rows_.span.push_back(span);
    rows_.table.push_back(table);
    rows_.tail_begin.push_back(static_cast<int32_t>(rows_.tail.size()));
  };
  const auto want_logits = [&] {
    rows_.logits_rows.push_back(rows_.n_rows() - 1);
    return static_cast<int32_t>(rows_.logits_rows.size()) - 1;
  };

  for (ActiveSequence* member : members) {
    const std::vector<int32_t>& tokens = member->request->tokens();
    const int32_t table = static_cast<int32_t>(rows_.pages.size());
    rows_.pages.insert(rows_.pages.end(), member->table.pages.begin(), member->table.pages.end());
    member->first_row = rows_.n_rows();
    for (int32_t i = 0; i < member->n_rows; ++i) {
      const int32_t position = member->n_computed + i;
      add_row(*member, tokens[at(position)], position, position, position + 1, table);
    }
    member->logits_of_node.clear();
    if (!member->wants_token) continue;
    member->first_logits = want_logits();

    const DraftTree& tree = member->tree;
    const int32_t root = member->n_computed;
    for (int32_t node = 0; node < tree.size(); ++node) {
      const int32_t position = root + tree.depth[at(node)];
      if (tree.in_place(node)) {
        add_row(*member, tree.token[at(node)], position, position, position + 1, table);
      } else {
        add_row(*member, tree.token[at(node)], position, root + 1 + node, root + 1, table);
        tree.path_to(node, path);
        for (const int32_t each : path)
          rows_.tail.push_back(member->table.physical(root + 1 + each));
      }
      const bool silent = (tree.flags[at(node)] & SPECD_NODE_PROBE) != 0 &&
                          (tree.flags[at(node)] & SPECD_NODE_WANT_TOP1) == 0;
      member->logits_of_node.push_back(silent ? -1 : want_logits());
    }
  }
}

void StepRunner::forward(const Members& members) {
  const uint64_t start_ns = now_ns();
  model_.forward(rows_, kv_);
  const uint64_t ns = now_ns() - start_ns;
  metrics_.forward_ns += ns;
  const double ns_per_row = static_cast<double>(ns) / rows_.n_rows();
  for (const ActiveSequence* member : members) {
    if (member->route == nullptr) continue;
    const int32_t rows = member->n_rows + member->tree.size();
    member->route->counters.forward_ns += static_cast<uint64_t>(ns_per_row * rows);
  }
}

void StepRunner::draw(const Members& members) {
  draw_rows_.assign(rows_.logits_rows.size(), {});
  for (const ActiveSequence* member : members) {
    if (!member->wants_token) continue;
    const SamplingParams& params = member->request->request().sampling;
    const auto fill = [&](int32_t logits) {
      draw_rows_[at(logits)] = {.temperature = params.temperature,
                                .top_p = params.top_p,
                                .top_k = params.top_k,
                                .position = rows_.position[at(rows_.logits_rows[at(logits)])] + 1,
                                .seed = params.seed,
                                .greedy = params.temperature == 0};
    };
    fill(member->first_logits);
    for (const int32_t logits : member->logits_of_node) {
      if (logits >= 0) fill(logits);
    }
  }
  row_token_.assign(rows_.logits_rows.size(), -1);
  if (row_token_.empty()) return;
  device_.ops().draw(device_.stream(), {.logits = model_.logits(),
                                        .row = draw_rows_.data(),
                                        .token = row_token_.data(),
                                        .n_rows = static_cast<int32_t>(row_token_.size()),
                                        .vocab = model_.config().vocab_size});
}

void StepRunner::verify(LiveRoute& route, const Members& members) {
  const int64_t n = static_cast<int64_t>(members.size());
  const int64_t capacity = route.drafter->grant().max_nodes;
  const int64_t path_capacity = route.drafter->grant().max_depth;
  Group group(members, step_id_);
  group.batch.seq_state = nullptr;
  std::vector<int32_t> root_token, root_position, n_nodes;
  std::vector<int32_t> token(static_cast<size_t>(n * capacity), 0), parent(token.size(), 0),
      flags(token.size(), 0);
  std::vector<int32_t> row_token(static_cast<size_t>(n * (capacity + 1)), -1);
  std::vector<int64_t> state;
  for (size_t s = 0; s < members.size(); ++s) {
    const ActiveSequence& member = *members[s];
    const DraftTree& tree = member.tree;
    root_token.push_back(member.request->tokens().back());
    root_position.push_back(member.request->size() - 1);
    n_nodes.push_back(tree.size());
    state.push_back(member.verifier_state);
    const size_t first = s * static_cast<size_t>(capacity);
    std::copy(tree.token.begin(), tree.token.end(), token.begin() + static_cast<ptrdiff_t>(first));
    std::copy(tree.parent.begin(), tree.parent.end(),
              parent.begin() + static_cast<ptrdiff_t>(first));
    std::copy(tree.flags.begin(), tree.flags.end(), flags.begin() + static_cast<ptrdiff_t>(first));
    int32_t* out = &row_token[s * static_cast<size_t>(capacity + 1)];
    out[0] = row_token_[at(member.first_logits)];
    for (int32_t i = 0; i < tree.size(); ++i) {
      const int32_t logits = member.logits_of_node[at(i)];
      if (logits >= 0) out[i + 1] = row_token_[at(logits)];
    }
  }
  std::vector<int32_t> n_accepted(members.size(), 0), next_token(members.size(), -1);
  std::vector<int32_t> path(static_cast<size_t>(n * path_capacity), 0);

  specd_tensor n_nodes_t = host_i32(n_nodes.data(), {n});
  specd_tensor token_t = host_i32(token.data(), {n, capacity});
  specd_tensor parent_t = host_i32(parent.data(), {n, capacity});
  specd_tensor flags_t = host_i32(flags.data(), {n, capacity});
  specd_tensor root_token_t = host_i32(root_token.data(), {n});
  specd_tensor root_position_t = host_i32(root_position.data(), {n});
  specd_tensor row_token_t = host_i32(row_token.data(), {n, capacity + 1});
  specd_tensor state_t = host_tensor(state.data(), SPECD_DT_INT, 64, {n});
  specd_tensor n_accepted_t = host_i32(n_accepted.data(), {n});
  specd_tensor path_t = host_i32(path.data(), {n, path_capacity});
  specd_tensor next_token_t = host_i32(next_token.data(), {n});
  specd_proposal proposal{};
  proposal.struct_size = sizeof(proposal);
  proposal.node_capacity = static_cast<uint32_t>(capacity);
  proposal.n_nodes = &n_nodes_t;
  proposal.token = &token_t;
  proposal.parent = &parent_t;
  proposal.flags = &flags_t;
  specd_verdict verdict{};
  verdict.struct_size = sizeof(verdict);
  verdict.path_capacity = static_cast<uint32_t>(path_capacity);
  verdict.n_accepted = &n_accepted_t;
  verdict.path = &path_t;
  verdict.next_token = &next_token_t;
  specd_verify_args args{};
  args.struct_size = sizeof(args);
  args.batch = &group.batch;
  args.proposal = &proposal;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.row_token = &row_token_t;
  args.state = &state_t;
  args.sampling = group.sampling_ptr.data();
  args.out = &verdict;
  const Status status = route.verifier->verify(args, group.call);

  for (size_t s = 0; s < members.size(); ++s) {
    ActiveSequence& member = *members[s];
    const int32_t* nodes = &path[s * static_cast<size_t>(path_capacity)];
    const Defect defect =
        check_verdict(n_accepted[s], nodes, static_cast<int32_t>(path_capacity), next_token[s],
                      member.tree.size(), member.tree.parent.data(), member.tree.flags.data(),
                      model_.config().vocab_size);
    const bool undecided = row_token_[at(member.first_logits)] < 0;  // commit() fails it
    if (!status.ok() || group.status[s] != SPECD_OK || defect != Defect::kNone || undecided) {
      // Accepts nothing; commit() emits the root row's token.
      if (!undecided) {
        route.cut(1, "verify: " + (!status.ok()                  ? status.to_string()
                                   : group.status[s] != SPECD_OK ? group.why(s)
                                                                 : defect_name(defect)));
      }
      continue;
    }
    member.accepted.assign(nodes, nodes + n_accepted[s]);
    member.verifier_state = state[s];
    row_token_[at(member.first_logits)] = next_token[s];
  }
}

uint64_t StepRunner::commit(const Members& members) {
  std::vector<int32_t> from, to, tokens;
  for (ActiveSequence* member : members) {
    const int32_t root = member->n_computed;
    member->n_computed += member->n_rows;
    if (!member->wants_token) continue;

    const int32_t next = row_token_[at(member->first_logits)];
    const bool ended = member->request->finish() != FinishReason::kNone;
    if (ended) {
      member->accepted.clear();
    } else if (next < 0) {
      member->request->fail(FinishReason::kError,
                            Status(Code::kInternal, "the model's logits at position " +
                                                        std::to_string(member->n_computed) +
                                                        " hold no finite number"));
      member->accepted.clear();
    } else {
      tokens.clear();
      for (const int32_t node : member->accepted) tokens.push_back(member->tree.token[at(node)]);
      tokens.push_back(next);
      member->n_taken = member->request->append(tokens.data(), static_cast<int32_t>(tokens.size()));
      plan_compaction(member->table, root, member->accepted, from, to);
      member->n_computed += static_cast<int32_t>(member->accepted.size());
    }

    Usage& usage = member->request->usage;
    const auto probes = std::count_if(member->tree.flags.begin(), member->tree.flags.end(),
                                      [](int32_t f) { return (f & SPECD_NODE_PROBE) != 0; });
    const int64_t drafted = member->tree.size();
    const int64_t passed = static_cast<int64_t>(member->accepted.size());
    const int64_t kept = std::min<int64_t>(passed, member->n_taken);
    const int64_t discarded = ended ? drafted : probes + (passed - kept);
    const int64_t rejected = drafted - discarded - kept;
    usage.steps += ended ? 0 : 1;
    usage.draft_tokens += drafted;
    usage.accepted_tokens += kept;
    usage.rejected_tokens += rejected;
    usage.discarded_tokens += discarded;
    if (member->route == nullptr) continue;
    RouteCounters& counters = member->route->counters;
    counters.steps += ended ? 0 : 1;
    if (drafted > 0) ++counters.drafts;
    for (int64_t i = 0; i < kept; ++i) ++counters.accepted_at[static_cast<size_t>(i)];
    counters.drafted += static_cast<uint64_t>(drafted);
    counters.accepted += static_cast<uint64_t>(kept);
    counters.rejected += static_cast<uint64_t>(rejected);
    counters.discarded += static_cast<uint64_t>(discarded);
  }
  if (!from.empty()) {
    for (const kernels::KvLayer& layer : kv_.layers()) {
      device_.ops().kv_move(device_.stream(), {.kv = layer,
                                               .from = from.data(),
                                               .to = to.data(),
                                               .n = static_cast<int32_t>(from.size())});
    }
  }
  return from.size();
}

void StepRunner::update(LiveRoute& route, const Members& members) {
  const specd_drafter_grant& grant = route.drafter->grant();
  const bool hidden = (grant.needs & SPECD_NEED_HIDDEN) != 0;
  const int64_t max_rows = grant.max_rows;
  const int64_t width = model_.config().hidden_size;
  const size_t n_taps = hidden ? route.drafter->caps().n_taps : 0;

  // What each member has to tell: rows of the forward, in position order.
  struct Row {
    int32_t row, position, node;
  };
  std::vector<std::vector<Row>> todo(members.size());
  size_t longest = 0;
  for (size_t s = 0; s < members.size(); ++s) {
    const ActiveSequence& member = *members[s];
    const int32_t base = rows_.position[at(member.first_row)];
    const int32_t n_begun = member.n_begun;
    for (int32_t i = 0; i < member.n_rows; ++i) {
      const int32_t position = base + i;
      if (!hidden && position < n_begun - 1) continue;
      todo[s].push_back(
          {member.first_row + i, position, position < n_begun ? SPECD_NODE_NONE : SPECD_NODE_ROOT});
    }
    for (size_t i = 0; i < member.accepted.size(); ++i) {
      todo[s].push_back({member.first_row + member.n_rows + member.accepted[i],
                         base + member.n_rows + static_cast<int32_t>(i), member.accepted[i]});
    }
    longest = std::max(longest, todo[s].size());
  }

  // The target's most likely token after the nodes that asked.
  const int64_t capacity = grant.max_nodes;
  std::vector<int32_t> top1;
  for (size_t s = 0; s < members.size(); ++s) {
    const ActiveSequence& member = *members[s];
    for (int32_t node = 0; node < member.tree.size(); ++node) {
      if ((member.tree.flags[at(node)] & SPECD_NODE_WANT_TOP1) == 0) continue;
      if (top1.empty()) top1.assign(members.size() * static_cast<size_t>(capacity), -1);
      const int32_t logits = member.logits_of_node[at(node)];
      const kernels::DrawRow greedy{};
      device_.ops().draw(
          device_.stream(),
          {.logits = model_.logits() +
                     static_cast<size_t>(logits) * static_cast<size_t>(model_.config().vocab_size),
           .row = &greedy,
           .token = &top1[s * static_cast<size_t>(capacity) + at(node)],
           .n_rows = 1,
           .vocab = model_.config().vocab_size});
    }
  }

  const size_t cells = members.size() * static_cast<size_t>(max_rows);
  std::vector<int32_t> count(members.size()), position(cells), token(cells), next_token(cells),
      node(cells);
  std::vector<std::vector<float>> hidden_data(n_taps);
  for (std::vector<float>& data : hidden_data) data.resize(cells * static_cast<size_t>(width));

  for (size_t done = 0; done < longest; done += static_cast<size_t>(max_rows)) {
    // Those still with the drafter; the first call tells the probes' results.
    Members now;
    std::vector<int32_t> top1_now;
    for (size_t s = 0; s < members.size(); ++s) {
      if (!members[s]->drafts()) continue;
      const std::vector<int32_t>& tokens = members[s]->request->tokens();
      const size_t begin = std::min(done, todo[s].size());
      const size_t end = std::min(begin + static_cast<size_t>(max_rows), todo[s].size());
      const size_t first_cell = now.size() * static_cast<size_t>(max_rows);
      count[now.size()] = static_cast<int32_t>(end - begin);
      for (size_t i = begin; i < end; ++i) {
        const Row& row = todo[s][i];
        const size_t cell = first_cell + (i - begin);
        position[cell] = row.position;
        token[cell] = tokens[at(row.position)];
        next_token[cell] = tokens[at(row.position + 1)];
        node[cell] = row.node;
        for (size_t t = 0; t < n_taps; ++t) {
          const float* source =
              model_.tap(route.tap_index[t]) +
              static_cast<size_t>(tap_row_of_[at(row.row)]) * static_cast<size_t>(width);
          std::memcpy(&hidden_data[t][cell * static_cast<size_t>(width)], source,
                      static_cast<size_t>(width) * sizeof(float));
        }
      }
      if (done == 0 && !top1.empty()) {
        const auto from = top1.begin() + static_cast<ptrdiff_t>(s) * capacity;
        top1_now.insert(top1_now.end(), from, from + capacity);
      }
      now.push_back(members[s]);
    }
    if (now.empty()) return;

    const int64_t n = static_cast<int64_t>(now.size());
    Group group(now, step_id_);
    specd_tensor count_t = host_i32(count.data(), {n});
    specd_tensor position_t = host_i32(position.data(), {n, max_rows});
    specd_tensor token_t = host_i32(token.data(), {n, max_rows});
    specd_tensor next_token_t = host_i32(next_token.data(), {n, max_rows});
    specd_tensor node_t = host_i32(node.data(), {n, max_rows});
    specd_tensor top1_t = host_i32(top1_now.data(), {n, capacity});
    std::vector<specd_tensor> hidden_tensor;
    for (std::vector<float>& data : hidden_data) {
      hidden_tensor.push_back(host_tensor(data.data(), SPECD_DT_FLOAT, 32, {n, max_rows, width}));
    }
    std::vector<const specd_tensor*> hidden_ptr;
    for (const specd_tensor& tensor : hidden_tensor) hidden_ptr.push_back(&tensor);
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.max_rows = static_cast<uint32_t>(max_rows);
    args.batch = &group.batch;
    args.count = &count_t;
    args.position = &position_t;
    args.token = &token_t;
    args.next_token = &next_token_t;
    args.node = &node_t;
    const bool mirrors = (grant.needs & SPECD_NEED_HOST_TOKENS) != 0;
    if (mirrors) {
      args.host_count = count.data();
      args.host_position = position.data();
      args.host_token = token.data();
      args.host_next_token = next_token.data();
      args.host_node = node.data();
    }
    args.hidden = hidden_ptr.data();
    args.top1 = top1_now.empty() ? nullptr : &top1_t;
    args.host_top1 = top1_now.empty() || !mirrors ? nullptr : top1_now.data();
    const Status status = route.drafter->update(args, group.call);
    Losses losses;
    for (size_t s = 0; s < now.size(); ++s) {
      if (status.ok() && group.status[s] == SPECD_OK) continue;
      end(*now[s], SPECD_END_QUARANTINED);
      losses.add(status.ok() ? group.why(s) : status.to_string());
    }
    losses.tell(route, "update");
  }
}

void StepRunner::copy_page(int32_t from, int32_t to) {
  std::vector<int32_t> source, target;
  for (int32_t i = 0; i < kernels::kPageTokens; ++i) {
    source.push_back(from * kernels::kPageTokens + i);
    target.push_back(to * kernels::kPageTokens + i);
  }
  for (const kernels::KvLayer& layer : kv_.layers()) {
    device_.ops().kv_move(
        device_.stream(),
        {.kv = layer, .from = source.data(), .to = target.data(), .n = kernels::kPageTokens});
  }
}

void StepRunner::end(ActiveSequence& sequence, uint32_t reason) {
  if (sequence.drafts()) end_drafting(sequence, reason);
  draft_models_.end(sequence.request->number());
}

void StepRunner::end_drafting(ActiveSequence& sequence, uint32_t reason) {
  Members members{&sequence};
  Group group(members, step_id_);
  specd_end_args args{};
  args.struct_size = sizeof(args);
  args.reason = reason;
  args.batch = &group.batch;
  sequence.route->drafter->end(args, group.call);
  sequence.drafting = ActiveSequence::Drafting::kLost;
  sequence.drafter_state = nullptr;
}

}  // namespace specd
