// The calls of a step to plugins: members of a batch as the boundary wants them, with the columns
// of propose() and verify(). For the files of StepRunner alone.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/exec/step.h"
#include "core/plugin/instance/tensor.h"

namespace specd {

inline size_t at(int32_t i) { return static_cast<size_t>(i); }

// A column where a plugin finds it: in host memory, or on the device.
inline specd_tensor tensor_of(const Device& device, bool on_device, const Column<int32_t>& column,
                              std::initializer_list<int64_t> shape) {
  if (!on_device) return host_i32(column.host, shape);
  specd_tensor tensor = host_i32(column.device, shape);
  tensor.device_type = SPECD_DEV_CUDA;
  tensor.device_index = device.index();
  return tensor;
}

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
      const SamplingParams& params = request.sampling();
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
      each.min_p = params.min_p;
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
    slots = tensor_of(device, true, column, {static_cast<int64_t>(column.n)});
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
  std::vector<bool> refused;  // sequences whose drafts the host has dropped: not to be judged

  Verification(LiveRoute& its_route, const Members& its_members, uint64_t step_id)
      : route(its_route),
        members(its_members),
        group(its_members, step_id),
        capacity(its_route.drafter->grant().max_nodes),
        path_capacity(its_route.drafter->grant().max_depth),
        refused(its_members.size(), false) {
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

  // Nobody has failed a part of it.
  bool is_well() const {
    const auto fine = [](specd_status status) { return status == SPECD_OK; };
    const auto all = [&](const std::vector<specd_status>& of) {
      return std::all_of(of.begin(), of.end(), fine);
    };
    return !failed && all(group.status) &&
           (!verification.has_value() ||
            (verification->status.ok() && all(verification->group.status)));
  }
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

}  // namespace specd
