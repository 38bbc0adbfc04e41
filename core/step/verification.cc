#include "core/step/verification.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/plugin/instance/sanitizer.h"
#include "core/plugin/instance/tensor.h"

namespace specd {

Verification::Verification(StepContext& step, LiveRoute& route, Members members,
                           const StepOutput& output, Staging& columns)
    : step_(step),
      route_(route),
      members_(std::move(members)),
      batch_(members_, step.step_id),
      on_device_(false),
      capacity_(route.drafter->grant().max_nodes),
      path_capacity_(route.drafter->grant().max_depth) {
  const size_t n = members_.size();
  for (Column<int32_t>* each : {&n_nodes_, &root_token_, &root_position_}) {
    *each = columns.add<int32_t>(n);
  }
  for (Column<int32_t>* each : {&token_, &parent_, &flags_}) {
    *each = columns.add<int32_t>(n * capacity_);
    std::fill_n(each->host, each->n, 0);
  }
  add_results(columns);
  add_laws(&output, columns);
  if (route_.hands_on_q()) {
    q_row_ = columns.add<int32_t>(n * (capacity_ + 1));
    std::fill_n(q_row_.host, q_row_.n, -1);
  }
  for (size_t s = 0; s < n; ++s) {
    const ActiveSequence& member = *members_[s];
    const DraftTree& tree = member.tree;
    root_token_.host[s] = member.sequence->tokens().back();
    root_position_.host[s] = member.sequence->size() - 1;
    n_nodes_.host[s] = tree.size();
    std::copy(tree.token.begin(), tree.token.end(), token_.host + s * capacity_);
    std::copy(tree.parent.begin(), tree.parent.end(), parent_.host + s * capacity_);
    std::copy(tree.flags.begin(), tree.flags.end(), flags_.host + s * capacity_);
    if (q_row_.n > 0) {
      std::copy(tree.q_row.begin(), tree.q_row.end(), q_row_.host + s * (capacity_ + 1));
    }
    each_row(s, [&](size_t cell, int32_t logits) {
      row_token_.host[cell] = output.drawn[to_size(logits)];
    });
  }
}

Verification::Verification(StepContext& step, const Proposal& proposal, Staging& columns)
    : step_(step),
      route_(proposal.route()),
      members_(proposal.members()),
      batch_(members_, step.step_id),
      on_device_(true),
      capacity_(route_.drafter->grant().max_nodes),
      path_capacity_(route_.drafter->grant().max_depth),
      n_nodes_(proposal.n_nodes),
      token_(proposal.token),
      parent_(proposal.parent),
      flags_(proposal.flags),
      root_token_(proposal.root_token),
      root_position_(proposal.root_position) {
  (void)batch_.place_on(step_.device, columns);  // as in Proposal
  add_results(columns);
  add_laws(nullptr, columns);
  std::vector<int32_t> from, to;
  for (size_t s = 0; s < members_.size(); ++s) {
    each_row(s, [&](size_t cell, int32_t logits) {
      from.push_back(logits);
      to.push_back(static_cast<int32_t>(cell));
    });
  }
  rows_from_ = columns.add(from);
  rows_to_ = columns.add(to);
}

// Adds the columns that are not part of the proposal, preset.
void Verification::add_results(Staging& columns) {
  const size_t n = members_.size();
  batch_.batch.seq_state = nullptr;  // belongs to the drafter
  row_token_ = columns.add<int32_t>(n * (capacity_ + 1));
  std::fill_n(row_token_.host, row_token_.n, -1);
  n_accepted_ = columns.add<int32_t>(n);
  std::fill_n(n_accepted_.host, n, 0);
  next_token_ = columns.add<int32_t>(n);
  std::fill_n(next_token_.host, n, -1);
  path_ = columns.add<int32_t>(n * path_capacity_);
  std::fill_n(path_.host, path_.n, 0);
  state_ = columns.add<int64_t>(n);
  for (size_t s = 0; s < n; ++s) state_.host[s] = members_[s]->verifier_state;
}

// `output`: for a verifier on the host; null: the laws are where the logits of the step are.
void Verification::add_laws(const StepOutput* output, Staging& columns) {
  if (!route_.reads_law()) return;
  row_ = columns.add<int32_t>(row_token_.n);
  std::fill_n(row_.host, row_.n, -1);
  for (size_t s = 0; s < members_.size(); ++s) {
    auto next = static_cast<size_t>(members_[s]->place.first_law);
    each_row(s, [&](size_t cell, int32_t logits) {
      row_.host[cell] = output == nullptr ? logits : output->law_row[next++];
    });
  }
  if (output == nullptr) return;
  law_ = output->law;
  lse_ = output->lse;
  for (const int32_t row : output->law_row) n_laws_ = std::max(n_laws_, row + 1);
}

// fn(cell of row_token, index of the logits row) for the root and every node that draws.
template <typename Fn>
void Verification::each_row(size_t s, Fn&& fn) const {
  const RowPlace& place = members_[s]->place;
  const size_t first = s * (capacity_ + 1);
  fn(first, place.root_logits);
  for (size_t i = 0; i < place.logits_of_node.size(); ++i) {
    if (place.logits_of_node[i] >= 0) fn(first + 1 + i, place.logits_of_node[i]);
  }
}

void Verification::submit_inputs(const DrawnColumns& drawn) {
  law_ = drawn.law;
  lse_ = drawn.lse.device;
  n_laws_ = static_cast<int32_t>(drawn.lse.n);
  const kernels::Ops& ops = step_.device.ops();
  kernels::Stream& stream = step_.device.stream();
  ops.pick_tokens(stream, {.source = drawn.token.device,
                           .from = rows_from_.device,
                           .target = row_token_.device,
                           .to = rows_to_.device,
                           .n = static_cast<int32_t>(rows_from_.n),
                           .vocab = step_.vocab_size,
                           .otherwise = -1});
  ops.clamp_nodes(stream, {.n_nodes = n_nodes_.device,
                           .token = token_.device,
                           .n = static_cast<int32_t>(n_nodes_.n),
                           .capacity = static_cast<int32_t>(capacity_),
                           .vocab = step_.vocab_size});
}

void Verification::call() {
  const auto n = static_cast<int64_t>(members_.size());
  const auto capacity = static_cast<int64_t>(capacity_);
  const auto path_capacity = static_cast<int64_t>(path_capacity_);
  const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
    return tensor_of(step_.device, on_device_, column, shape);
  };
  specd_tensor n_nodes_t = tensor(n_nodes_, {n});
  specd_tensor token_t = tensor(token_, {n, capacity});
  specd_tensor parent_t = tensor(parent_, {n, capacity});
  specd_tensor flags_t = tensor(flags_, {n, capacity});
  specd_tensor root_token_t = tensor(root_token_, {n});
  specd_tensor root_position_t = tensor(root_position_, {n});
  specd_tensor row_token_t = tensor(row_token_, {n, capacity + 1});
  specd_tensor state_t =
      host_tensor(on_device_ ? state_.device : state_.host, SPECD_DT_INT, 64, {n});
  state_t.device_type = n_nodes_t.device_type;
  state_t.device_index = n_nodes_t.device_index;
  const auto laws = [&](const float* data, std::initializer_list<int64_t> shape) {
    const specd_tensor in_host =  // read-only, as verifier.h says
        host_tensor(const_cast<float*>(data), SPECD_DT_FLOAT, 32, shape);
    return on_device_ ? in_device_memory(in_host, step_.device.index()) : in_host;
  };
  specd_tensor row_t = tensor(row_, {n, capacity + 1});
  specd_tensor law_t = laws(law_, {n_laws_, step_.vocab_size});
  specd_tensor lse_t = laws(lse_, {n_laws_});
  specd_tensor n_accepted_t = tensor(n_accepted_, {n});
  specd_tensor path_t = tensor(path_, {n, path_capacity});
  specd_tensor next_token_t = tensor(next_token_, {n});
  specd_proposal proposal{};
  proposal.struct_size = sizeof(proposal);
  proposal.node_capacity = static_cast<uint32_t>(capacity);
  proposal.n_nodes = &n_nodes_t;
  proposal.token = &token_t;
  proposal.parent = &parent_t;
  proposal.flags = &flags_t;
  specd_tensor q_row_t = tensor(q_row_, {n, capacity + 1});
  // Only what was checked, and that is what drafts of this step name.
  specd_tensor q_t = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0, step_.vocab_size});
  specd_tensor q_lse_t = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0});
  if (q_row_.n > 0) {
    const bool is_drafted = std::any_of(members_.begin(), members_.end(),
                                        [](const auto* member) { return member->tree.size() > 0; });
    if (is_drafted) q_t = route_.q, q_lse_t = route_.q_lse;
    proposal.q_row = &q_row_t;
    proposal.q = &q_t;
    proposal.q_lse = &q_lse_t;
  }
  specd_verdict verdict{};
  verdict.struct_size = sizeof(verdict);
  verdict.path_capacity = static_cast<uint32_t>(path_capacity);
  verdict.n_accepted = &n_accepted_t;
  verdict.path = &path_t;
  verdict.next_token = &next_token_t;
  specd_verify_args args{};
  args.struct_size = sizeof(args);
  args.batch = &batch_.batch;
  args.proposal = &proposal;
  args.root_token = &root_token_t;
  args.root_position = &root_position_t;
  args.row_token = &row_token_t;
  if (route_.reads_law()) {
    args.row = &row_t;
    args.law = &law_t;
    args.law_lse = &lse_t;
  }
  args.state = &state_t;
  args.sampling = batch_.sampling_ptr.data();
  const std::vector<const int32_t*> text = batch_.text();
  const std::vector<uint32_t> text_len = batch_.text_len();
  args.text = text.data();
  args.text_len = text_len.data();
  args.out = &verdict;
  status_ = route_.verifier->verify(args, batch_.call);
}

void Verification::submit_outputs(Staging& columns) {
  columns.download(n_accepted_);
  columns.download(path_);
  columns.download(next_token_);
  columns.download(state_);
}

void Verification::judge(const std::vector<bool>& counts, const std::vector<int32_t>& drawn) {
  for (size_t s = 0; s < members_.size(); ++s) {
    if (!counts.empty() && !counts[s]) continue;
    ActiveSequence& member = *members_[s];
    if (drawn[to_size(member.place.root_logits)] < 0) continue;  // commit() fails the sequence
    const int32_t n_accepted = n_accepted_.host[s], next_token = next_token_.host[s];
    const int32_t* nodes = path_.host + s * path_capacity_;
    const Defect defect = check_verdict(n_accepted, nodes, static_cast<int32_t>(path_capacity_),
                                        next_token, member.tree.size(), member.tree.parent.data(),
                                        member.tree.flags.data(), step_.vocab_size);
    const specd_status status = batch_.status[s];
    if (!status_.ok() || status != SPECD_OK || defect != Defect::kNone) {
      const auto why = [&] {
        if (!status_.ok()) return status_.to_string();
        if (status != SPECD_OK) return batch_.why(s);
        return defect_name(defect) + (": n_accepted is " + std::to_string(n_accepted)) +
               ", next_token " + std::to_string(next_token) + "; the tree has " +
               std::to_string(member.tree.size()) + " nodes, the vocabulary " +
               std::to_string(step_.vocab_size) + " tokens";
      };
      // In this order, and read in the other: the part never exceeds the whole.
      route_.cut(1, route_.verifier_bundle, "verify: " + why());
      ++route_.counters.cut_verdicts;
      continue;
    }
    member.verdict = {.accepted = {nodes, nodes + n_accepted}, .next_token = next_token};
    member.verifier_state = state_.host[s];
  }
}

}  // namespace specd
