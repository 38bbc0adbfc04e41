#include "core/exec/step.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/plugin/sanitizer.h"
#include "core/plugin/tensor.h"
#include "core/spec/budget.h"

namespace specd {

namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

specd_tensor tensor_of(const Device& device, const Column<int32_t>& column,
                       std::initializer_list<int64_t> shape) {
  specd_tensor tensor = host_i32(column.device, shape);
  tensor.device_type = SPECD_DEV_CUDA;
  tensor.device_index = device.index();
  return tensor;
}

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
  std::vector<std::span<const int32_t>> committed;
  specd_tensor slots{};
  specd_batch batch{};

  Group(const Members& members, uint64_t step_id) {
    const size_t n = members.size();
    for (const ActiveSequence* member : members) {
      const Sequence& request = *member->request;
      committed.emplace_back(request.tokens());
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
  // For a drafter on the device: its slots are there, and it may use the stream.
  void on(Device& device, Staging& columns) {
    const Column<int32_t> column = columns.add(slot_column);
    slots = tensor_of(device, column, {static_cast<int64_t>(column.n)});
    batch.stream = device.native_stream();
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

// One call of verify() with its columns, in host memory or on the device.
struct StepRunner::Verification {
  LiveRoute& route;
  Members members;
  Group group;
  bool on_device = false;
  size_t capacity, path_capacity;
  Column<int32_t> n_nodes, token, parent, flags, root_token, root_position;  // the proposal
  Column<int32_t> row_token, n_accepted, path, next_token;
  Column<int64_t> state;
  Column<int32_t> rows_from, rows_to;  // on the device: what was drawn, and its cell of row_token
  Status status;

  Verification(LiveRoute& its_route, const Members& its_members, uint64_t step_id)
      : route(its_route),
        members(its_members),
        group(its_members, step_id),
        capacity(its_route.drafter->grant().max_nodes),
        path_capacity(its_route.drafter->grant().max_depth) {
    group.batch.seq_state = nullptr;
  }
  // What is no part of the proposal, preset.
  void add_rest(Staging& columns) {
    const size_t n = members.size();
    row_token = columns.add<int32_t>(n * (capacity + 1));
    std::fill_n(row_token.host, row_token.n, -1);
    n_accepted = columns.add<int32_t>(n);
    std::fill_n(n_accepted.host, n, 0);
    next_token = columns.add<int32_t>(n);
    std::fill_n(next_token.host, n, -1);
    path = columns.add<int32_t>(n * path_capacity);
    std::fill_n(path.host, path.n, 0);
    state = columns.add<int64_t>(n);
    for (size_t s = 0; s < n; ++s) state.host[s] = members[s]->verifier_state;
  }
  // fn(cell of row_token, index of the logits row) for the root and every node that has one.
  template <typename Fn>
  void each_row(size_t s, Fn&& fn) const {
    const ActiveSequence& member = *members[s];
    const size_t first = s * (capacity + 1);
    fn(first, member.first_logits);
    for (size_t i = 0; i < member.logits_of_node.size(); ++i) {
      if (member.logits_of_node[i] >= 0) fn(first + 1 + i, member.logits_of_node[i]);
    }
  }
};

// One call of propose() with its columns, in host memory or on the device.
struct StepRunner::Proposal {
  LiveRoute& route;
  Members members;
  Group group;
  bool on_device;
  bool failed = false;
  std::vector<int32_t> given;  // budgets; the plugin gets copies of what it only reads
  Column<int32_t> root_token, root_position, budget, n_nodes, token, parent, flags;
  std::optional<Verification> verification;  // on the device

  Proposal(LiveRoute& its_route, const Members& its_members, uint64_t step_id)
      : route(its_route),
        members(its_members),
        group(its_members, step_id),
        on_device(its_route.on_device()) {}

  int64_t capacity() const { return route.drafter->grant().max_nodes; }
  bool probes() const { return (route.drafter->grant().needs & SPECD_NEED_PROBES) != 0; }
  bool variable() const { return route.drafter->caps().tree_mode == SPECD_TREE_VARIABLE; }
  // Of a tree whose shape the host knows.
  int32_t parent_of(int64_t node) const {
    const std::vector<int32_t>& fixed = route.drafter->static_parents();
    const auto i = static_cast<size_t>(node);
    return i < fixed.size() ? fixed[i] : static_cast<int32_t>(node) - 1;
  }
  void preset_parents() {
    for (size_t i = 0; i < parent.n; ++i) {
      parent.host[i] = parent_of(static_cast<int64_t>(i) % capacity());
    }
  }
};

StepRunner::StepRunner(Device& device, Transformer& model, KvStore& kv, ModelService& draft_models)
    : device_(device),
      model_(model),
      kv_(kv),
      draft_models_(draft_models),
      graphs_(device, draft_models) {}

StepRunner::~StepRunner() = default;

Result<std::unique_ptr<StepRunner>> StepRunner::create(Device& device, Transformer& model,
                                                       KvStore& kv, ModelService& draft_models) {
  std::unique_ptr<StepRunner> runner(new StepRunner(device, model, kv, draft_models));
  constexpr uint64_t kFirstBytes = uint64_t{1} << 20;  // grows with the steps
  SPECD_TRY(runner->staging_, Staging::create(device, kFirstBytes, "columns of a step"));
  SPECD_TRY(runner->behind_, Staging::create(device, kFirstBytes, "columns between steps"));
  return runner;
}

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

Result<StepCounters> StepRunner::run(const StepPlan& plan, std::vector<ActiveSequence>& running) {
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
  SPECD_OK_OR_RETURN(make_room(members, drafting));
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    if (route.on_device()) return;
    Proposal proposal(route, group, step_id_);
    prepare(proposal);
    if (propose(proposal)) take(proposal);
  });
  std::erase_if(members, ended);
  if (members.empty()) return counters;
  // Those on the device come last: from here on the members stay the same.
  std::erase_if(drafting, [&](ActiveSequence* member) {
    return !member->drafts() || std::find(members.begin(), members.end(), member) == members.end();
  });
  proposals_.clear();
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    if (!route.on_device()) return;
    prepare(proposals_.emplace_back(route, group, step_id_));
    expect_tree(proposals_.back());
  });
  build_rows(members);
  SPECD_OK_OR_RETURN(compute(members));
  for (Proposal& proposal : proposals_) {
    take(proposal);
    if (proposal.verification.has_value() && !proposal.failed) judge(*proposal.verification);
  }
  proposals_.clear();
  for (ActiveSequence* member : members) {
    if (!ended(member) && member->route != nullptr && member->wants_token &&
        !member->route->verifies_on_device) {
      routed.push_back(member);
    }
  }
  Status verified;
  by_route(routed, [&](LiveRoute& route, const Members& group) {
    if (verified.ok()) verified = verify(route, group);
  });
  SPECD_OK_OR_RETURN(verified);
  counters.rows = static_cast<uint64_t>(rows_.n_rows());
  SPECD_TRY(counters.kv_moves, commit(members));

  Members updating;
  for (ActiveSequence* member : members) {
    counters.tokens += static_cast<uint64_t>(member->n_taken);
    if (member->request->finish() == FinishReason::kNone && member->drafts() &&
        member->route->drafter->has_update()) {
      updating.push_back(member);
    }
  }
  Status updated;
  by_route(updating, [&](LiveRoute& route, const Members& group) {
    if (updated.ok()) updated = update(route, group);
  });
  SPECD_OK_OR_RETURN(updated);
  metrics_.step_time.record(now_ns() - start_ns);
  return counters;
}

// As much as the step can need at most. The stream has passed what the last one used.
Status StepRunner::make_room(const Members& members, const Members& drafting) {
  int64_t rows = 0, nodes = 0, pages = 0;
  for (const ActiveSequence* member : members) {
    rows += member->n_rows;
    pages += static_cast<int64_t>(member->table.pages.size());
  }
  uint64_t bytes = 0;
  const auto columns = [](int64_t n) { return Staging::bytes_of<int32_t>(static_cast<size_t>(n)); };
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    const auto n = static_cast<int64_t>(group.size());
    const int64_t cells = n * route.drafter->grant().max_nodes;
    // Inputs, slots, counts; tokens, parents, flags; where tokens go; the verdict.
    bytes += 5 * columns(n) + 5 * columns(cells);
    if (route.verifies_on_device) {
      bytes += 5 * columns(n) + 3 * columns(cells + n) +
               columns(n * route.drafter->grant().max_depth);
    }
    for (const ActiveSequence* member : group) nodes += member->draft_nodes;
  });
  rows += nodes;
  bytes += ForwardRows::staging_bytes(rows, pages, nodes * (SPECD_MAX_TREE_DEPTH + 1)) +
           Staging::bytes_of<kernels::DrawRow>(static_cast<size_t>(rows)) * 2 + 2 * columns(rows);
  if (!device_.is_host()) {
    bytes += model_.n_taps() * columns(rows * model_.config().hidden_size);
  }
  SPECD_TRY(const bool moved, staging_.reserve(bytes));
  if (moved) graphs_.clear();
  return Status();
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
  const Status room = to_device(route, group);
  const Status status = room.ok() ? route.drafter->begin(args, group.call) : room;
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

void StepRunner::prepare(Proposal& proposal) {
  const LiveRoute& route = proposal.route;
  const std::vector<int32_t>& fixed = route.drafter->static_parents();
  const auto capacity = static_cast<int32_t>(proposal.capacity());
  std::vector<int32_t> root_token, root_position;
  for (const ActiveSequence* member : proposal.members) {
    root_token.push_back(member->request->tokens().back());
    root_position.push_back(member->n_computed);
    int32_t budget = std::min(member->draft_nodes, capacity);
    if (!fixed.empty()) budget = std::min(budget, static_cast<int32_t>(fixed.size()));
    proposal.given.push_back(budget);
  }
  proposal.root_token = staging_.add(root_token);
  proposal.root_position = staging_.add(root_position);
  proposal.budget = staging_.add(proposal.given);
  proposal.n_nodes = staging_.add(proposal.given);
  const size_t cells = proposal.members.size() * static_cast<size_t>(capacity);
  proposal.token = staging_.add<int32_t>(cells);
  proposal.parent = staging_.add<int32_t>(cells);
  proposal.flags = staging_.add<int32_t>(cells);
  std::fill_n(proposal.token.host, cells, int32_t{SPECD_NO_TOKEN});
  std::fill_n(proposal.parent.host, cells, 0);
  std::fill_n(proposal.flags.host, cells, 0);
  if (!proposal.variable()) proposal.preset_parents();
  if (proposal.on_device) proposal.group.on(device_, staging_);
}

// The call itself. False when the drafter failed it.
bool StepRunner::propose(Proposal& proposal) {
  LiveRoute& route = proposal.route;
  const auto n = static_cast<int64_t>(proposal.members.size());
  const int64_t capacity = proposal.capacity();
  const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
    return proposal.on_device ? tensor_of(device_, column, shape) : host_i32(column.host, shape);
  };
  specd_tensor root_token_t = tensor(proposal.root_token, {n});
  specd_tensor root_position_t = tensor(proposal.root_position, {n});
  specd_tensor budget_t = tensor(proposal.budget, {n});
  specd_tensor n_nodes_t = tensor(proposal.n_nodes, {n});
  specd_tensor token_t = tensor(proposal.token, {n, capacity});
  specd_tensor parent_t = tensor(proposal.parent, {n, capacity});
  specd_tensor flags_t = tensor(proposal.flags, {n, capacity});
  specd_proposal out{};
  out.struct_size = sizeof(out);
  out.node_capacity = static_cast<uint32_t>(capacity);
  out.n_nodes = &n_nodes_t;
  out.token = &token_t;
  out.parent = &parent_t;
  out.flags = proposal.probes() ? &flags_t : nullptr;
  specd_propose_args args{};
  args.struct_size = sizeof(args);
  args.batch = &proposal.group.batch;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.node_budget = &budget_t;
  if ((route.drafter->grant().needs & SPECD_NEED_HOST_TOKENS) != 0) {
    args.host_root_token = proposal.root_token.host;
    args.host_root_position = proposal.root_position.host;
    args.host_node_budget = proposal.budget.host;
  }
  args.sampling = proposal.group.sampling_ptr.data();
  args.out = &out;
  proposal.group.call.committed = &proposal.group.committed;
  const Status status = route.drafter->propose(args, proposal.group.call);
  if (!status.ok()) {
    route.cut(proposal.members.size(), status.to_string());
    proposal.failed = true;  // whatever it has written, the members are decoded plainly
  }
  return status.ok();
}

// The rows of a tree whose tokens only the device will know.
void StepRunner::expect_tree(const Proposal& proposal) {
  for (size_t s = 0; s < proposal.members.size(); ++s) {
    DraftTree& tree = proposal.members[s]->tree;
    for (int32_t node = 0; node < proposal.given[s]; ++node) {
      const int32_t parent = proposal.parent_of(node);
      tree.token.push_back(0);
      tree.parent.push_back(parent);
      tree.flags.push_back(0);
      tree.depth.push_back(parent < 0 ? 1 : tree.depth[at(parent)] + 1);
    }
  }
}

// What the drafter has written becomes the members' trees, as far as it is good.
void StepRunner::take(Proposal& proposal) {
  LiveRoute& route = proposal.route;
  const auto capacity = static_cast<size_t>(proposal.capacity());
  if (!proposal.variable()) proposal.preset_parents();  // not the plugin's to write
  TreeLimits limits{.vocab_size = model_.config().vocab_size,
                    .node_budget = 0,
                    .max_depth = static_cast<int32_t>(route.drafter->grant().max_depth),
                    .probes = proposal.probes() && !proposal.on_device};
  std::vector<int32_t> depth(capacity);
  for (size_t s = 0; s < proposal.members.size(); ++s) {
    ActiveSequence& member = *proposal.members[s];
    DraftTree& tree = member.tree;
    tree.clear();
    const specd_status status = proposal.group.status[s];
    const bool bad = status != SPECD_OK && status != SPECD_E_DEADLINE;
    if (bad && !proposal.failed) route.cut(1, "propose: " + proposal.group.why(s));
    if (bad || proposal.failed) continue;
    limits.node_budget = proposal.given[s];
    const int32_t* token = proposal.token.host + s * capacity;
    const int32_t* parent = proposal.parent.host + s * capacity;
    const int32_t* flags = proposal.flags.host + s * capacity;
    const int32_t n_nodes = proposal.on_device ? proposal.given[s] : proposal.n_nodes.host[s];
    const TreeCheck check = check_tree(n_nodes, token, parent, limits.probes ? flags : nullptr,
                                       limits, depth.data());
    if (check.defect != Defect::kNone) {
      route.cut(1, std::string("propose: ") + defect_name(check.defect) + " at node " +
                       std::to_string(check.node));
    }
    tree.token.assign(token, token + check.n_nodes);
    tree.parent.assign(parent, parent + check.n_nodes);
    tree.flags.assign(flags, flags + check.n_nodes);
    tree.depth.assign(depth.begin(), depth.begin() + check.n_nodes);
    if (proposal.on_device && member.wants_token) member.logits_of_node.resize(at(check.n_nodes));
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

// Submits what the device has to do for this step, and waits for it.
Status StepRunner::compute(const Members& members) {
  draw_rows_.assign(rows_.logits_rows.size(), {});
  bool wants_top1 = false;
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
    for (const int32_t flags : member->tree.flags) {
      wants_top1 = wants_top1 || (flags & SPECD_NODE_WANT_TOP1) != 0;
    }
  }
  struct Pick {
    Column<int32_t> source, from, to;
  };
  std::vector<Pick> picks;
  for (const Proposal& proposal : proposals_) {
    std::vector<int32_t> from, to;
    for (size_t s = 0; s < proposal.members.size(); ++s) {
      const ActiveSequence& member = *proposal.members[s];
      for (int32_t node = 0; node < member.tree.size(); ++node) {
        from.push_back(static_cast<int32_t>(static_cast<int64_t>(s) * proposal.capacity()) + node);
        to.push_back(member.first_row + member.n_rows + node);
      }
    }
    picks.push_back({proposal.token, staging_.add(from), staging_.add(to)});
  }
  for (Proposal& proposal : proposals_) {
    if (proposal.route.verifies_on_device) prepare_verdict(proposal);
  }
  const ForwardColumns columns = rows_.stage(staging_);
  const auto draws = staging_.add(draw_rows_);
  const std::vector<kernels::DrawRow> greedy(wants_top1 ? draw_rows_.size() : 0);
  const auto greedy_draws = staging_.add(greedy);
  const auto tokens = staging_.add<int32_t>(draw_rows_.size());
  const auto top1 = staging_.add<int32_t>(greedy.size());
  const auto width = static_cast<size_t>(model_.config().hidden_size);
  std::vector<Column<float>> taps;
  for (size_t i = 0; i < model_.n_taps() && !device_.is_host(); ++i) {
    taps.push_back(staging_.add<float>(rows_.tap_rows.size() * width));
  }

  const uint64_t start_ns = now_ns();
  const auto upload = [&] { staging_.upload_all(); };  // twice when a capture fails
  const auto forward = [&] {
    const kernels::Ops& ops = device_.ops();
    for (const Pick& pick : picks) {
      ops.pick_tokens(device_.stream(), {.source = pick.source.device,
                                         .from = pick.from.device,
                                         .target = columns.token.device,
                                         .to = pick.to.device,
                                         .n = static_cast<int32_t>(pick.from.n),
                                         .vocab = model_.config().vocab_size,
                                         .otherwise = 0});
      staging_.download(pick.source);
    }
    model_.forward(columns, kv_);
    const auto draw = [&](const Column<kernels::DrawRow>& rows, const Column<int32_t>& out) {
      if (rows.n == 0) return;
      ops.draw(device_.stream(), {.logits = model_.logits(),
                                  .row = rows.device,
                                  .token = out.device,
                                  .n_rows = static_cast<int32_t>(rows.n),
                                  .vocab = model_.config().vocab_size});
      staging_.download(out);
    };
    draw(draws, tokens);
    draw(greedy_draws, top1);
    for (Proposal& proposal : proposals_) {
      if (proposal.verification.has_value()) submit_verdict(*proposal.verification, tokens);
    }
    for (size_t i = 0; i < taps.size(); ++i) {
      device_.copy_out(taps[i].host, model_.tap(i), taps[i].bytes());
    }
  };
  if (device_.is_host()) {
    forward();
  } else {
    StepGraphs::Shape shape{static_cast<uint64_t>(columns.n_rows),
                            static_cast<uint64_t>(columns.n_logits),
                            static_cast<uint64_t>(columns.n_taps), model_.n_taps(),
                            greedy.size(), staging_.used()};
    std::vector<StepGraphs::Proposer> proposers;
    for (Proposal& proposal : proposals_) {
      shape.push_back(proposal.route.number);
      shape.insert(shape.end(), proposal.given.begin(), proposal.given.end());
      proposal.group.call.committed = &proposal.group.committed;
      proposers.push_back(
          {.call = &proposal.group.call,
           .may_capture = proposal.route.may_capture(),
           .propose = [this, &proposal] { return propose(proposal); }});
    }
    SPECD_OK_OR_RETURN(graphs_.submit(shape, proposers, upload, forward));
    SPECD_OK_OR_RETURN(device_.synchronize());
    draft_models_.passed();
    behind_.clear();
  }
  const uint64_t ns = now_ns() - start_ns;
  metrics_.forward_ns += ns;
  const double ns_per_row = static_cast<double>(ns) / rows_.n_rows();
  for (const ActiveSequence* member : members) {
    if (member->route == nullptr) continue;
    const int32_t rows = member->n_rows + member->tree.size();
    member->route->counters.forward_ns += static_cast<uint64_t>(ns_per_row * rows);
  }
  row_token_.assign(tokens.host, tokens.host + tokens.n);
  top1_.assign(top1.host, top1.host + top1.n);
  tap_rows_.clear();
  for (size_t i = 0; i < model_.n_taps(); ++i) {
    tap_rows_.push_back(device_.is_host() ? model_.tap(i) : taps[i].host);
  }
  return Status();
}

// Host memory: everything is known.
Status StepRunner::verify(LiveRoute& route, const Members& members) {
  Verification call(route, members, step_id_);
  const size_t n = members.size(), capacity = call.capacity;
  const uint64_t bytes =
      6 * Staging::bytes_of<int32_t>(n) + Staging::bytes_of<int64_t>(n) +
      3 * Staging::bytes_of<int32_t>(n * capacity) +
      Staging::bytes_of<int32_t>(n * (capacity + 1)) +
      Staging::bytes_of<int32_t>(n * call.path_capacity);
  SPECD_OK_OR_RETURN(room_behind(bytes));
  for (Column<int32_t>* each : {&call.n_nodes, &call.root_token, &call.root_position}) {
    *each = behind_.add<int32_t>(n);
  }
  for (Column<int32_t>* each : {&call.token, &call.parent, &call.flags}) {
    *each = behind_.add<int32_t>(n * capacity);
    std::fill_n(each->host, each->n, 0);
  }
  call.add_rest(behind_);
  for (size_t s = 0; s < n; ++s) {
    const ActiveSequence& member = *members[s];
    const DraftTree& tree = member.tree;
    call.root_token.host[s] = member.request->tokens().back();
    call.root_position.host[s] = member.request->size() - 1;
    call.n_nodes.host[s] = tree.size();
    std::copy(tree.token.begin(), tree.token.end(), call.token.host + s * capacity);
    std::copy(tree.parent.begin(), tree.parent.end(), call.parent.host + s * capacity);
    std::copy(tree.flags.begin(), tree.flags.end(), call.flags.host + s * capacity);
    call.each_row(s, [&](size_t cell, int32_t logits) {
      call.row_token.host[cell] = row_token_[at(logits)];
    });
  }
  verify(call);
  judge(call);
  return Status();
}

// The call itself.
void StepRunner::verify(Verification& call) {
  const auto n = static_cast<int64_t>(call.members.size());
  const auto capacity = static_cast<int64_t>(call.capacity);
  const auto path_capacity = static_cast<int64_t>(call.path_capacity);
  const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
    return call.on_device ? tensor_of(device_, column, shape) : host_i32(column.host, shape);
  };
  specd_tensor n_nodes_t = tensor(call.n_nodes, {n});
  specd_tensor token_t = tensor(call.token, {n, capacity});
  specd_tensor parent_t = tensor(call.parent, {n, capacity});
  specd_tensor flags_t = tensor(call.flags, {n, capacity});
  specd_tensor root_token_t = tensor(call.root_token, {n});
  specd_tensor root_position_t = tensor(call.root_position, {n});
  specd_tensor row_token_t = tensor(call.row_token, {n, capacity + 1});
  specd_tensor state_t = host_tensor(call.on_device ? call.state.device : call.state.host,
                                     SPECD_DT_INT, 64, {n});
  state_t.device_type = n_nodes_t.device_type;
  state_t.device_index = n_nodes_t.device_index;
  specd_tensor n_accepted_t = tensor(call.n_accepted, {n});
  specd_tensor path_t = tensor(call.path, {n, path_capacity});
  specd_tensor next_token_t = tensor(call.next_token, {n});
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
  args.batch = &call.group.batch;
  args.proposal = &proposal;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.row_token = &row_token_t;
  args.state = &state_t;
  args.sampling = call.group.sampling_ptr.data();
  args.out = &verdict;
  call.status = call.route.verifier->verify(args, call.group.call);
}

// A usable verdict becomes what the members have accepted; of the others nothing is, and commit()
// emits the root row's token.
void StepRunner::judge(const Verification& call) {
  for (size_t s = 0; s < call.members.size(); ++s) {
    ActiveSequence& member = *call.members[s];
    const int32_t n_accepted = call.n_accepted.host[s], next_token = call.next_token.host[s];
    const int32_t* nodes = call.path.host + s * call.path_capacity;
    const Defect defect =
        check_verdict(n_accepted, nodes, static_cast<int32_t>(call.path_capacity), next_token,
                      member.tree.size(), member.tree.parent.data(), member.tree.flags.data(),
                      model_.config().vocab_size);
    if (row_token_[at(member.first_logits)] < 0) continue;  // commit() fails it
    const specd_status status = call.group.status[s];
    if (!call.status.ok() || status != SPECD_OK || defect != Defect::kNone) {
      call.route.cut(1, "verify: " + (!call.status.ok()    ? call.status.to_string()
                                      : status != SPECD_OK ? call.group.why(s)
                                                           : defect_name(defect)));
      continue;
    }
    member.accepted.assign(nodes, nodes + n_accepted);
    member.verifier_state = call.state.host[s];
    row_token_[at(member.first_logits)] = next_token;
  }
}

// The same for what was drafted on the device, with columns there.
void StepRunner::prepare_verdict(Proposal& proposal) {
  Verification& call =
      proposal.verification.emplace(proposal.route, proposal.members, step_id_);
  call.on_device = true;
  call.group.on(device_, staging_);
  call.n_nodes = proposal.n_nodes;
  call.token = proposal.token;
  call.parent = proposal.parent;
  call.flags = proposal.flags;
  call.root_token = proposal.root_token;
  call.root_position = proposal.root_position;
  call.add_rest(staging_);
  std::vector<int32_t> from, to;
  for (size_t s = 0; s < proposal.members.size(); ++s) {
    call.each_row(s, [&](size_t cell, int32_t logits) {
      from.push_back(logits);
      to.push_back(static_cast<int32_t>(cell));
    });
  }
  call.rows_from = staging_.add(from);
  call.rows_to = staging_.add(to);
}

void StepRunner::submit_verdict(Verification& call, const Column<int32_t>& row_tokens) {
  const kernels::Ops& ops = device_.ops();
  const int32_t vocab = model_.config().vocab_size;
  ops.pick_tokens(device_.stream(), {.source = row_tokens.device,
                                     .from = call.rows_from.device,
                                     .target = call.row_token.device,
                                     .to = call.rows_to.device,
                                     .n = static_cast<int32_t>(call.rows_from.n),
                                     .vocab = vocab,
                                     .otherwise = -1});
  ops.clamp_nodes(device_.stream(), {.n_nodes = call.n_nodes.device,
                                     .token = call.token.device,
                                     .n = static_cast<int32_t>(call.n_nodes.n),
                                     .capacity = static_cast<int32_t>(call.capacity),
                                     .vocab = vocab});
  verify(call);
  staging_.download(call.n_accepted);
  staging_.download(call.path);
  staging_.download(call.next_token);
  staging_.download(call.state);
}

Result<uint64_t> StepRunner::commit(const Members& members) {
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
  SPECD_OK_OR_RETURN(move(from, to));
  return from.size();
}

// Room for columns of what runs before the next step's work.
Status StepRunner::room_behind(uint64_t bytes) {
  if (device_.is_host()) behind_.clear();  // its work is done
  if (bytes <= behind_.room()) return Status();
  SPECD_OK_OR_RETURN(device_.synchronize());
  const Result<bool> moved = behind_.reserve(bytes);
  return moved.status();
}

Status StepRunner::move(const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
  if (from.empty()) return Status();
  SPECD_OK_OR_RETURN(room_behind(2 * Staging::bytes_of<int32_t>(from.size())));
  const auto sources = behind_.add(from), targets = behind_.add(to);
  behind_.upload();
  for (const kernels::KvLayer& layer : kv_.layers()) {
    device_.ops().kv_move(device_.stream(), {.kv = layer,
                                             .from = sources.device,
                                             .to = targets.device,
                                             .n = static_cast<int32_t>(from.size())});
  }
  return Status();
}

Status StepRunner::update(LiveRoute& route, const Members& members) {
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
      top1[s * static_cast<size_t>(capacity) + at(node)] =
          top1_[at(member.logits_of_node[at(node)])];
    }
  }

  const size_t cells = members.size() * static_cast<size_t>(max_rows);
  std::vector<std::vector<float>> hidden_data(n_taps);
  for (std::vector<float>& data : hidden_data) data.resize(cells * static_cast<size_t>(width));

  for (size_t done = 0; done < longest; done += static_cast<size_t>(max_rows)) {
    // Those still with the drafter; the first call tells the probes' results.
    Members now;
    const uint64_t bytes = 2 * Staging::bytes_of<int32_t>(members.size()) +
                           4 * Staging::bytes_of<int32_t>(cells) +
                           Staging::bytes_of<int32_t>(members.size() * at(grant.max_nodes));
    SPECD_OK_OR_RETURN(room_behind(bytes));
    const auto count = behind_.add<int32_t>(members.size());
    const auto position = behind_.add<int32_t>(cells), token = behind_.add<int32_t>(cells),
               next_token = behind_.add<int32_t>(cells), node = behind_.add<int32_t>(cells);
    std::vector<int32_t> top1_now;
    for (size_t s = 0; s < members.size(); ++s) {
      if (!members[s]->drafts()) continue;
      const std::vector<int32_t>& tokens = members[s]->request->tokens();
      const size_t begin = std::min(done, todo[s].size());
      const size_t end = std::min(begin + static_cast<size_t>(max_rows), todo[s].size());
      const size_t first_cell = now.size() * static_cast<size_t>(max_rows);
      count.host[now.size()] = static_cast<int32_t>(end - begin);
      for (size_t i = begin; i < end; ++i) {
        const Row& row = todo[s][i];
        const size_t cell = first_cell + (i - begin);
        position.host[cell] = row.position;
        token.host[cell] = tokens[at(row.position)];
        next_token.host[cell] = tokens[at(row.position + 1)];
        node.host[cell] = row.node;
        for (size_t t = 0; t < n_taps; ++t) {
          const float* source =
              tap_rows_[route.tap_index[t]] +
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
    if (now.empty()) return Status();

    const int64_t n = static_cast<int64_t>(now.size());
    Group group(now, step_id_);
    const auto top1_column = behind_.add(top1_now);
    if (route.on_device()) {
      group.on(device_, behind_);
      behind_.upload();
    }
    const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
      return route.on_device() ? tensor_of(device_, column, shape) : host_i32(column.host, shape);
    };
    specd_tensor count_t = tensor(count, {n});
    specd_tensor position_t = tensor(position, {n, max_rows});
    specd_tensor token_t = tensor(token, {n, max_rows});
    specd_tensor next_token_t = tensor(next_token, {n, max_rows});
    specd_tensor node_t = tensor(node, {n, max_rows});
    specd_tensor top1_t = tensor(top1_column, {n, capacity});
    std::vector<specd_tensor> hidden_tensor;
    for (std::vector<float>& data : hidden_data) {
      hidden_tensor.push_back(host_tensor(data.data(), SPECD_DT_FLOAT, 32, {n, max_rows, width}));
    }
    std::vector<const specd_tensor*> hidden_ptr;
    for (const specd_tensor& each : hidden_tensor) hidden_ptr.push_back(&each);
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
      args.host_count = count.host;
      args.host_position = position.host;
      args.host_token = token.host;
      args.host_next_token = next_token.host;
      args.host_node = node.host;
    }
    args.hidden = hidden_ptr.data();
    args.top1 = top1_now.empty() ? nullptr : &top1_t;
    args.host_top1 = top1_now.empty() || !mirrors ? nullptr : top1_column.host;
    const Status status = route.drafter->update(args, group.call);
    Losses losses;
    for (size_t s = 0; s < now.size(); ++s) {
      if (status.ok() && group.status[s] == SPECD_OK) continue;
      end(*now[s], SPECD_END_QUARANTINED);
      losses.add(status.ok() ? group.why(s) : status.to_string());
    }
    losses.tell(route, "update");
  }
  return Status();
}

Status StepRunner::copy_page(int32_t from, int32_t to) {
  std::vector<int32_t> source, target;
  for (int32_t i = 0; i < kernels::kPageTokens; ++i) {
    source.push_back(from * kernels::kPageTokens + i);
    target.push_back(to * kernels::kPageTokens + i);
  }
  return move(source, target);
}

// A drafter on the device finds there what is given to it beside its own columns.
Status StepRunner::to_device(const LiveRoute& route, Group& group) {
  if (!route.on_device()) return Status();
  SPECD_OK_OR_RETURN(room_behind(Staging::bytes_of<int32_t>(group.slot_column.size())));
  group.on(device_, behind_);
  behind_.upload();
  return Status();
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
  if (const Status room = to_device(*sequence.route, group); !room.ok()) {
    log(LogLevel::kError, "route " + sequence.route->name + ": end: " + room.to_string());
  }
  sequence.route->drafter->end(args, group.call);
  sequence.drafting = ActiveSequence::Drafting::kLost;
  sequence.drafter_state = nullptr;
}

}  // namespace specd
