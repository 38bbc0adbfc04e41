// One propose() call for the members of one route: budgets in, draft trees out. The drafter's
// output is checked before it becomes a tree, and a failure costs drafts only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/context.h"
#include "core/step/plugin_batch.h"

namespace specd {

class Proposal {
 public:
  // Adds preset columns to `columns`, which must outlive this.
  Proposal(StepContext& step, LiveRoute& route, Members members, Staging& columns);

  // Calls the drafter. False when the call failed; the members then have no draft in this step.
  bool call();
  // Gives the members trees of the fixed shape, whose tokens only the device will know.
  void expect_trees();
  // Turns the drafter's output into the members' trees, each cut before its first defect. Returns
  // for each member whether its draft is usable. A call of which nothing is usable has failed, and
  // counts against the drafter; an empty draft is usable.
  std::vector<bool> take();

  LiveRoute& route() const { return route_; }
  const Members& members() const { return members_; }
  PluginBatch& batch() { return batch_; }
  bool failed() const { return failed_; }
  int64_t capacity() const { return route_.drafter->grant().max_nodes; }  // nodes per member
  const std::vector<int32_t>& given() const { return given_; }            // budgets
  bool is_well() const { return !failed_ && batch_.all_ok(); }

  Column<int32_t> root_token, root_position, budget, n_nodes;  // [members]
  Column<int32_t> token, parent, flags;                        // [members, capacity]
  Column<int32_t> q_row;  // [members, capacity + 1]; empty when no q is handed on

 private:
  bool probes() const { return (route_.drafter->grant().needs & SPECD_NEED_PROBES) != 0; }
  bool has_fixed_parents() const { return route_.drafter->caps().tree_mode != SPECD_TREE_VARIABLE; }
  void set_fixed_parents();

  StepContext& step_;
  LiveRoute& route_;
  Members members_;
  PluginBatch batch_;
  std::vector<int32_t> given_;  // budgets; the plugin gets a copy
  bool failed_ = false;
  uint64_t took_ns_ = 0;  // of call(); 0 when a graph did its work
};

}  // namespace specd
