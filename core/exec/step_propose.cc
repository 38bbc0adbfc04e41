// Drafting: from budgets to token trees.
#include <algorithm>
#include <string>

#include "core/exec/step_calls.h"
#include "core/plugin/instance/sanitizer.h"

namespace specd {

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
    return tensor_of(device_, proposal.on_device, column, shape);
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
    if (bad || proposal.failed) {
      if (proposal.verification.has_value()) proposal.verification->refused[s] = true;
      continue;
    }
    limits.node_budget = proposal.given[s];
    const int32_t* token = proposal.token.host + s * capacity;
    const int32_t* parent = proposal.parent.host + s * capacity;
    const int32_t* flags = proposal.flags.host + s * capacity;
    const int32_t n_nodes = proposal.on_device ? proposal.given[s] : proposal.n_nodes.host[s];
    const TreeCheck check =
        check_tree(n_nodes, token, parent, limits.probes ? flags : nullptr, limits, depth.data());
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

}  // namespace specd
