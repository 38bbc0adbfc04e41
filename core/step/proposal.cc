#include "core/step/proposal.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/plugin/instance/sanitizer.h"
#include "core/plugin/instance/tensor.h"
#include "core/step/draft_law.h"

namespace specd {

Proposal::Proposal(StepContext& step, LiveRoute& route, Members members, Staging& columns)
    : step_(step), route_(route), members_(std::move(members)), batch_(members_, step.step_id) {
  const std::vector<int32_t>& fixed = route_.drafter->static_parents();
  std::vector<int32_t> root_tokens, root_positions;
  for (const ActiveSequence* member : members_) {
    root_tokens.push_back(member->sequence->tokens().back());
    root_positions.push_back(member->root());
    int32_t nodes = std::min(member->draft_nodes, static_cast<int32_t>(capacity()));
    if (!fixed.empty()) nodes = std::min(nodes, static_cast<int32_t>(fixed.size()));
    given_.push_back(nodes);
  }
  root_token = columns.add(root_tokens);
  root_position = columns.add(root_positions);
  budget = columns.add(given_);
  // Nothing is submitted when the columns have no memory.
  if (route_.on_device()) (void)batch_.place_on(step_.device, columns);
  if (route_.on_device() && !route_.drafts_in_stream() && columns.status().ok()) columns.upload();
  n_nodes = columns.add(given_);
  const size_t cells = members_.size() * static_cast<size_t>(capacity());
  token = columns.add<int32_t>(cells);
  parent = columns.add<int32_t>(cells);
  flags = columns.add<int32_t>(cells);
  std::fill_n(token.host, cells, int32_t{SPECD_NO_TOKEN});
  std::fill_n(parent.host, cells, 0);
  std::fill_n(flags.host, cells, 0);
  if (has_fixed_parents()) set_fixed_parents();
  if (!route_.hands_on_q()) return;
  q_row = columns.add<int32_t>(cells + members_.size());
  std::fill_n(q_row.host, q_row.n, -1);
}

bool Proposal::call() {
  const auto n = static_cast<int64_t>(members_.size());
  const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
    return tensor_of(step_.device, route_.on_device(), column, shape);
  };
  const auto result = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
    return tensor_of(step_.device, route_.drafts_in_stream(), column, shape);
  };
  specd_tensor root_token_t = tensor(root_token, {n});
  specd_tensor root_position_t = tensor(root_position, {n});
  specd_tensor budget_t = tensor(budget, {n});
  specd_tensor n_nodes_t = result(n_nodes, {n});
  specd_tensor token_t = result(token, {n, capacity()});
  specd_tensor parent_t = result(parent, {n, capacity()});
  specd_tensor flags_t = result(flags, {n, capacity()});
  specd_proposal out{};
  out.struct_size = sizeof(out);
  out.node_capacity = static_cast<uint32_t>(capacity());
  out.n_nodes = &n_nodes_t;
  out.token = &token_t;
  out.parent = &parent_t;
  out.flags = probes() ? &flags_t : nullptr;
  specd_tensor q_row_t = tensor(q_row, {n, capacity() + 1});
  if (route_.hands_on_q()) {
    route_.q = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0, step_.vocab_size});
    route_.q_lse = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0});
    out.q_row = &q_row_t;
    out.q = &route_.q;
    out.q_lse = &route_.q_lse;
  }
  specd_propose_args args{};
  args.struct_size = sizeof(args);
  args.batch = &batch_.batch;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.node_budget = &budget_t;
  if ((route_.drafter->grant().needs & SPECD_NEED_HOST_TOKENS) != 0) {
    args.host_root_token = root_token.host;
    args.host_root_position = root_position.host;
    args.host_node_budget = budget.host;
  }
  args.sampling = batch_.sampling_ptr.data();
  args.out = &out;
  batch_.offer_committed();
  const uint64_t start_ns = batch_.start(route_);
  const Status status = route_.calls().propose(args, batch_.call);
  took_ns_ = now_ns() - start_ns;
  if (!status.ok()) {
    route_.called(DrafterCall::kPropose, status, took_ns_);
    route_.cut(members_.size(), route_.drafter_bundle, status.to_string());
    failed_ = true;
  }
  return status.ok();
}

void Proposal::expect_trees() {
  for (size_t s = 0; s < members_.size(); ++s) {
    DraftTree& tree = members_[s]->tree;
    for (int32_t node = 0; node < given_[s]; ++node) {
      const int32_t its_parent = route_.drafter->fixed_parent(to_size(node));
      tree.token.push_back(0);
      tree.parent.push_back(its_parent);
      tree.flags.push_back(0);
      tree.depth.push_back(its_parent < 0 ? 1 : tree.depth[to_size(its_parent)] + 1);
    }
  }
}

std::vector<bool> Proposal::take() {
  const auto cells = static_cast<size_t>(capacity());
  const bool in_stream = route_.drafts_in_stream();
  if (has_fixed_parents()) set_fixed_parents();  // the plugin may have changed them
  TreeLimits limits{.vocab_size = step_.vocab_size,
                    .node_budget = 0,
                    .max_depth = static_cast<int32_t>(route_.drafter->grant().max_depth),
                    .probes = probes()};
  std::vector<bool> counts(members_.size(), false);
  std::vector<int32_t> depth(cells);
  bool is_usable = false;
  const bool is_no_replace = route_.drafter->caps().draft_rule == SPECD_RULE_NO_REPLACE;
  std::string problem;
  for (size_t s = 0; s < members_.size(); ++s) {
    DraftTree& tree = members_[s]->tree;
    tree.clear();
    const specd_status status = batch_.status[s];
    const bool bad = status != SPECD_OK && status != SPECD_E_DEADLINE;
    if (bad && !failed_)
      route_.cut(1, route_.drafter_bundle, problem = "propose: " + batch_.why(s));
    if (bad || failed_) continue;
    counts[s] = true;
    limits.node_budget = given_[s];
    const int32_t* tokens = token.host + s * cells;
    const int32_t* parents = parent.host + s * cells;
    const int32_t* node_flags = flags.host + s * cells;
    const int32_t n = in_stream ? given_[s] : n_nodes.host[s];
    const TreeCheck check =
        check_tree(n, tokens, parents, limits.probes ? node_flags : nullptr, limits, depth.data());
    if (check.defect != Defect::kNone) {
      problem = std::string("propose: ") + defect_name(check.defect) + " at node " +
                std::to_string(check.node);
      route_.cut(1, route_.drafter_bundle, problem);
    }
    tree.token.assign(tokens, tokens + check.n_nodes);
    tree.parent.assign(parents, parents + check.n_nodes);
    tree.flags.assign(node_flags, node_flags + check.n_nodes);
    tree.depth.assign(depth.begin(), depth.begin() + check.n_nodes);
    int32_t n_good = check.n_nodes;
    if (route_.hands_on_q()) {
      const QCheck q = check_q(step_.host, route_.q, route_.q_lse, tree,
                               q_row.host + s * (cells + 1), is_no_replace, step_.vocab_size);
      tree.cut(n_good = q.n_nodes);
      tree.take_q(q_row.host + s * (cells + 1));
      if (!q.fault.empty()) {
        problem = "propose: " + q.fault;
        if (check.defect == Defect::kNone) {
          route_.cut(1, route_.drafter_bundle, problem);
        } else {
          route_.last_problem.set(problem);
        }
      }
      if (!q.fault.empty() && n_good == 0) continue;
    }
    is_usable = is_usable || check.defect == Defect::kNone || n_good > 0;
  }
  if (!failed_) {
    route_.called(DrafterCall::kPropose,
                  is_usable ? Status() : Status(Code::kInternal, "nothing is usable: " + problem),
                  took_ns_);
  }
  return counts;
}

void Proposal::set_fixed_parents() {
  route_.drafter->set_fixed_parents(parent.host, parent.n, static_cast<size_t>(capacity()));
}

}  // namespace specd
