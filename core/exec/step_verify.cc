// Verdicts: on the host after the forward, or on the device behind it.
#include <algorithm>
#include <string>

#include "core/exec/step_calls.h"
#include "core/plugin/instance/sanitizer.h"

namespace specd {

// Host memory: everything is known.
Status StepRunner::verify(LiveRoute& route, const Members& members) {
  Verification call(route, members, step_id_);
  const size_t n = members.size(), capacity = call.capacity;
  const uint64_t bytes = 6 * Staging::bytes_of<int32_t>(n) + Staging::bytes_of<int64_t>(n) +
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
    return tensor_of(device_, call.on_device, column, shape);
  };
  specd_tensor n_nodes_t = tensor(call.n_nodes, {n});
  specd_tensor token_t = tensor(call.token, {n, capacity});
  specd_tensor parent_t = tensor(call.parent, {n, capacity});
  specd_tensor flags_t = tensor(call.flags, {n, capacity});
  specd_tensor root_token_t = tensor(call.root_token, {n});
  specd_tensor root_position_t = tensor(call.root_position, {n});
  specd_tensor row_token_t = tensor(call.row_token, {n, capacity + 1});
  specd_tensor state_t =
      host_tensor(call.on_device ? call.state.device : call.state.host, SPECD_DT_INT, 64, {n});
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
    if (call.refused[s]) continue;
    ActiveSequence& member = *call.members[s];
    const int32_t n_accepted = call.n_accepted.host[s], next_token = call.next_token.host[s];
    const int32_t* nodes = call.path.host + s * call.path_capacity;
    const Defect defect = check_verdict(n_accepted, nodes, static_cast<int32_t>(call.path_capacity),
                                        next_token, member.tree.size(), member.tree.parent.data(),
                                        member.tree.flags.data(), model_.config().vocab_size);
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
  Verification& call = proposal.verification.emplace(proposal.route, proposal.members, step_id_);
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

}  // namespace specd
