// A propose() call in host memory, for drafters that the tests load.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plugin/instance/host_context.h"
#include "core/plugin/instance/tensor.h"
#include "specd/plugin_api/drafter.h"

namespace specd {

// One sequence, eight nodes.
struct Step {
  specd_call call;
  uint64_t seq_id = 1;
  void* seq_state = nullptr;
  specd_status seq_status = SPECD_OK;
  uint32_t slot = 0;
  int32_t slot_value = 0, root_token = 40, root_position = 3, budget = 8, n_nodes = 0;
  std::vector<int32_t> tokens = std::vector<int32_t>(8, -5), parents = std::vector<int32_t>(8, -5);
  specd_tensor slots = host_i32(&slot_value, {1});
  specd_tensor roots = host_i32(&root_token, {1});
  specd_tensor positions = host_i32(&root_position, {1});
  specd_tensor budgets = host_i32(&budget, {1});
  specd_tensor counts = host_i32(&n_nodes, {1});
  specd_tensor token = host_i32(tokens.data(), {1, 8});
  specd_tensor parent = host_i32(parents.data(), {1, 8});
  specd_batch batch{};
  specd_proposal proposal{};
  specd_propose_args args{};

  Step() {
    batch.struct_size = sizeof(batch);
    batch.n_seqs = 1;
    batch.call = &call;
    batch.seq_id = &seq_id;
    batch.seq_state = &seq_state;
    batch.seq_status = &seq_status;
    batch.slot = &slot;
    batch.slots = &slots;
    call.batch = &batch;
    proposal.struct_size = sizeof(proposal);
    proposal.node_capacity = 8;
    proposal.n_nodes = &counts;
    proposal.token = &token;
    proposal.parent = &parent;
    args.struct_size = sizeof(args);
    args.batch = &batch;
    args.root_token = &roots;
    args.root_position = &positions;
    args.node_budget = &budgets;
    args.host_root_token = &root_token;
    args.host_root_position = &root_position;
    args.host_node_budget = &budget;
    args.out = &proposal;
  }
};

}  // namespace specd
