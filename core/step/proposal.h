// One propose(): from budgets to draft trees, for the members of one route. What the drafter
// returns is checked before it becomes a tree; whatever goes wrong costs drafts only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/context.h"
#include "core/step/plugin_batch.h"

namespace specd {

class Proposal {
 public:
  // Adds its columns to `columns`, preset; they outlive this.
  Proposal(StepContext& step, LiveRoute& route, Members members, Staging& columns);

  // The call itself. False when the drafter failed it; then the members are decoded plainly.
  bool call();
  // Gives the members the trees whose tokens only the device will know: their shape is fixed.
  void expect_trees();
  // What the drafter has written becomes the members' trees, cut before the first defect.
  // Returns for each member whether its drafts count.
  std::vector<bool> take();

  LiveRoute& route() const { return route_; }
  const Members& members() const { return members_; }
  PluginBatch& batch() { return batch_; }
  bool failed() const { return failed_; }
  int64_t capacity() const { return route_.drafter->grant().max_nodes; }  // nodes of a member
  const std::vector<int32_t>& given() const { return given_; }            // budgets
  bool is_well() const { return !failed_ && batch_.all_ok(); }

  Column<int32_t> root_token, root_position, budget, n_nodes;  // [members]
  Column<int32_t> token, parent, flags;                        // [members, capacity]

 private:
  bool probes() const { return (route_.drafter->grant().needs & SPECD_NEED_PROBES) != 0; }
  bool has_fixed_parents() const { return route_.drafter->caps().tree_mode != SPECD_TREE_VARIABLE; }
  int32_t fixed_parent_of(int64_t node) const;
  void set_fixed_parents();

  StepContext& step_;
  LiveRoute& route_;
  Members members_;
  PluginBatch batch_;
  std::vector<int32_t> given_;  // the plugin gets copies of what it only reads
  bool failed_ = false;
};

}  // namespace specd
