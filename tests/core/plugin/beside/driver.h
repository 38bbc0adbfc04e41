// Makes the [step] calls of a drafter as a step does, wherever it works.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/instance/instance.h"
#include "core/plugin/instance/tensor.h"

namespace specd {

inline constexpr int32_t kHidden = 3, kTopK = 2, kNodes = 8;
inline constexpr uint64_t kSecondNs = 1'000'000'000;

// A batch, and the columns of one call.
struct Call {
  explicit Call(const std::vector<std::pair<uint64_t, uint32_t>>& sequences) {
    for (const auto& [id, its_slot] : sequences) {
      ids.push_back(id);
      slot.push_back(its_slot);
      slot_column.push_back(static_cast<int32_t>(its_slot));
      specd_sampling& its = sampling.emplace_back();
      its.struct_size = sizeof(its);
      its.seed = 1000 + id;
    }
    for (const specd_sampling& each : sampling) sampling_ptr.push_back(&each);
    status.assign(ids.size(), SPECD_OK);
    state.assign(ids.size(), nullptr);
    slots = ints(slot_column);
    batch.struct_size = sizeof(batch);
    batch.n_seqs = static_cast<uint32_t>(ids.size());
    batch.call = &call;
    batch.seq_id = ids.data();
    batch.seq_state = state.data();
    batch.seq_status = status.data();
    batch.slot = slot.data();
    batch.slots = &slots;
    call.batch = &batch;
    call.sampling = sampling_ptr.data();
  }
  static specd_tensor ints(std::vector<int32_t>& column) {
    return host_i32(column.data(), {static_cast<int64_t>(column.size())});
  }

  specd_call call;
  specd_batch batch{};
  specd_tensor slots{};
  std::vector<uint64_t> ids;
  std::vector<uint32_t> slot;
  std::vector<int32_t> slot_column;
  std::vector<specd_sampling> sampling;
  std::vector<const specd_sampling*> sampling_ptr;
  std::vector<specd_status> status;
  std::vector<void*> state;
};

// The sequences of a drafter, as a step keeps them.
struct Seats {
  struct Seat {
    uint64_t id = 0;  // 0 = free
    bool is_lost = false;
    void* state = nullptr;
    int32_t position = 0;
  };
  std::array<Seat, 4> seats{};
  // Those that it has.
  std::vector<uint32_t> on() const {
    std::vector<uint32_t> all;
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (seats[slot].id != 0 && !seats[slot].is_lost) all.push_back(slot);
    }
    return all;
  }
  Call call(const std::vector<uint32_t>& slots) const {
    std::vector<std::pair<uint64_t, uint32_t>> sequences;
    for (const uint32_t slot : slots) sequences.emplace_back(seats[slot].id, slot);
    return Call(sequences);
  }
};

// Makes the calls of a step on one drafter.
class Driver {
 public:
  explicit Driver(DrafterCalls& calls) : calls_(calls) {}

  void begin(uint32_t slot, uint64_t id, const std::vector<int32_t>& tokens) {
    Call c({{id, slot}});
    const uint64_t offsets[2] = {0, tokens.size()};
    specd_begin_args args{};
    args.struct_size = sizeof(args);
    args.attach_mode = SPECD_ATTACH_FRESH;
    args.batch = &c.batch;
    args.token_offsets = offsets;
    args.tokens = tokens.data();
    args.sampling = c.sampling_ptr.data();
    args.seq_state = c.state.data();
    const uint64_t tenant = id % 3 * 0x123456789abcdefu;
    args.tenant = &tenant;
    EXPECT_TRUE(calls_.begin(args, c.call).ok());
    seats_.seats[slot] = {.id = id,
                          .is_lost = c.status[0] != SPECD_OK,
                          .state = c.state[0],
                          .position = static_cast<int32_t>(tokens.size()) - 1};
  }
  // `n_rows` rows for each sequence that has begun, with numbers that tell where they are from.
  void update(uint32_t n_rows, bool with_hidden, bool with_top) {
    const std::vector<uint32_t> slots = take_losses();
    if (slots.empty()) return;
    Call c = call(slots);
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> seq_index, position, token, next_token, node, last_row, hidden_row,
        last_hidden_row, top_row;
    for (size_t s = 0; s < slots.size(); ++s) {
      Seats::Seat& seat = seats_.seats[slots[s]];
      for (uint32_t r = 0; r < n_rows; ++r) {
        seq_index.push_back(static_cast<int32_t>(s));
        position.push_back(seat.position++);
        token.push_back(static_cast<int32_t>(seat.id) * 10 + position.back());
        next_token.push_back(token.back() + 1);
        node.push_back(static_cast<int32_t>(r) - 1);
        hidden_row.push_back(static_cast<int32_t>(2 * (slots[s] * 6 + r) + 1));  // with gaps
      }
      last_row.push_back(n_rows == 0 ? -1 : static_cast<int32_t>(position.size()) - 1);
      last_hidden_row.push_back(n_rows == 0 ? -1 : hidden_row.back());
      offsets.push_back(static_cast<uint32_t>(position.size()));
      for (int32_t cell = 0; cell <= kNodes; ++cell)
        top_row.push_back(cell % 3 == 0 ? static_cast<int32_t>(slots[s]) * 9 + cell : -1);
    }
    constexpr int64_t kRows = 2 * 4 * 6, kTops = 9 * 4;
    std::vector<float> values(kRows * 5 + 1);  // rows of 5, of which 3 count
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    std::vector<int32_t> tops(kTops * 4);  // rows of 4, of which 2 count
    for (size_t i = 0; i < tops.size(); ++i) tops[i] = static_cast<int32_t>(i);
    specd_tensor first = host_tensor(values.data(), SPECD_DT_FLOAT, 32, {kRows, kHidden});
    first.stride[0] = 5;
    specd_tensor second = first;
    second.data = values.data() + 1;
    const specd_tensor* hidden[2] = {&first, &second};
    const auto n = static_cast<int64_t>(slots.size());
    specd_tensor seq_indices = Call::ints(seq_index), positions = Call::ints(position),
                 tokens = Call::ints(token), next_tokens = Call::ints(next_token),
                 nodes = Call::ints(node), last_rows = Call::ints(last_row),
                 hidden_rows = Call::ints(hidden_row),
                 last_hidden_rows = Call::ints(last_hidden_row),
                 top_rows = host_i32(top_row.data(), {n, kNodes + 1}),
                 top_token = host_i32(tops.data(), {kTops, kTopK});
    top_token.stride[0] = 4;
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = static_cast<uint32_t>(position.size());
    args.batch = &c.batch;
    args.row_offsets = offsets.data();
    args.seq_index = &seq_indices;
    args.position = &positions;
    args.token = &tokens;
    args.next_token = &next_tokens;
    args.node = &nodes;
    args.last_row = &last_rows;
    args.host_position = position.data();
    args.host_token = token.data();
    args.host_next_token = next_token.data();
    args.host_node = node.data();
    if (with_hidden) {
      args.hidden_row = &hidden_rows;
      args.host_hidden_row = hidden_row.data();
      args.last_hidden_row = &last_hidden_rows;
      args.hidden = hidden;
    }
    if (with_top) {
      args.top_row = &top_rows;
      args.host_top_row = top_row.data();
      args.top_token = &top_token;
      args.host_top_token = tops.data();
    }
    const Status status = calls_.update(args, c.call);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (status.ok() && c.status[s] == SPECD_OK) continue;
      end(slots[s], SPECD_END_QUARANTINED);
      seats_.seats[slots[s]].is_lost = true;
    }
  }
  // Every proposal in words.
  std::string propose(int32_t budget, bool has_parents, bool has_flags, Status* failed = nullptr) {
    const std::vector<uint32_t> slots = asks_first ? take_losses() : seats_.on();
    if (slots.empty()) return "";
    Call c = call(slots);
    const size_t n = slots.size();
    std::vector<int32_t> root_token, root_position, budgets(n, budget), n_nodes(n, budget),
        token(n * kNodes, SPECD_NO_TOKEN), parent(n * kNodes, -9), flags(n * kNodes, 0);
    for (const uint32_t slot : slots) {
      root_token.push_back(static_cast<int32_t>(seats_.seats[slot].id) +
                           seats_.seats[slot].position);
      root_position.push_back(seats_.seats[slot].position);
    }
    const auto rows = static_cast<int64_t>(n);
    specd_tensor root_tokens = Call::ints(root_token), root_positions = Call::ints(root_position),
                 node_budgets = Call::ints(budgets), counts = Call::ints(n_nodes),
                 tokens = host_i32(token.data(), {rows, kNodes}),
                 parents = host_i32(parent.data(), {rows, kNodes}),
                 all_flags = host_i32(flags.data(), {rows, kNodes});
    specd_proposal out{};
    out.struct_size = sizeof(out);
    out.node_capacity = kNodes;
    out.n_nodes = &counts;
    out.token = &tokens;
    out.parent = &parents;
    out.flags = has_flags ? &all_flags : nullptr;
    specd_propose_args args{};
    args.struct_size = sizeof(args);
    args.batch = &c.batch;
    args.root_token = &root_tokens;
    args.root_position = &root_positions;
    args.node_budget = &node_budgets;
    args.sampling = c.sampling_ptr.data();
    args.out = &out;
    const Status status = calls_.propose(args, c.call);
    if (failed != nullptr) *failed = status;
    std::string text;
    for (size_t s = 0; s < n && status.ok(); ++s) {
      text += std::to_string(c.ids[s]) + " " + status_text(c.status[s]) + ":";
      for (int32_t i = 0; c.status[s] == SPECD_OK && i < std::min(n_nodes[s], kNodes); ++i) {
        const size_t cell = s * kNodes + static_cast<size_t>(i);
        text += " " + std::to_string(token[cell]);
        if (has_parents) text += "<" + std::to_string(parent[cell]);
        if (has_flags) text += "!" + std::to_string(flags[cell]);
      }
      text += "\n";
    }
    return text;
  }
  void end(uint32_t slot, uint32_t reason) {
    Call c = call({slot});
    specd_end_args args{};
    args.struct_size = sizeof(args);
    args.reason = reason;
    args.batch = &c.batch;
    calls_.end(args, c.call);
  }
  void leave(uint32_t slot, uint32_t reason) {
    if (!seats_.seats[slot].is_lost) end(slot, reason);
    seats_.seats[slot] = {};
  }
  bool is_free(uint32_t slot) const { return seats_.seats[slot].id == 0; }
  bool is_lost(uint32_t slot) const { return seats_.seats[slot].is_lost; }
  // What a step asks before its calls.
  std::vector<uint32_t> take_losses() {
    EXPECT_TRUE(calls_.take_answers().ok());
    for (const uint32_t slot : seats_.on()) {
      if (calls_.loss_of(slot, seats_.seats[slot].id) != SequenceLoss::kNone)
        seats_.seats[slot].is_lost = true;
    }
    return seats_.on();
  }

  bool asks_first = true;  // propose(): for answers that have come

 private:
  Call call(const std::vector<uint32_t>& slots) const {
    Call c = seats_.call(slots);
    for (size_t s = 0; s < slots.size(); ++s) c.state[s] = seats_.seats[slots[s]].state;
    return c;
  }
  DrafterCalls& calls_;
  Seats seats_;
};

}  // namespace specd
