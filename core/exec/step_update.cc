// The life of a sequence with its drafter: begin, update, end.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/log.h"
#include "core/exec/step_calls.h"

namespace specd {

namespace {

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

// A drafter on the device finds there what is given to it beside its own columns.
Status StepRunner::to_device(const LiveRoute& route, Group& group) {
  if (!route.on_device()) return Status();
  SPECD_OK_OR_RETURN(room_behind(Staging::bytes_of<int32_t>(group.slot_column.size())));
  group.on(device_, behind_);
  behind_.upload();
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
      return tensor_of(device_, route.on_device(), column, shape);
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
