// One verify(): verdicts about the drafts of one route's members, on the host after the forward or
// on the device behind it. A verdict is checked before it counts; a member without a usable one
// keeps none.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/context.h"
#include "core/step/plugin_batch.h"
#include "core/step/proposal.h"

namespace specd {

class Verification {
 public:
  // On the host: the members' trees and what was drawn from their rows. Columns go to `columns`.
  Verification(StepContext& step, LiveRoute& route, Members members,
               const std::vector<int32_t>& drawn, Staging& columns);
  // On the device: what `proposal` has drafted there. Requires the members' places.
  Verification(StepContext& step, const Proposal& proposal, Staging& columns);

  // On the device, behind the draw: puts what was drawn where the verifier finds it, and cuts the
  // drafts before the first that is no token.
  void submit_inputs(const Column<int32_t>& drawn);
  // The call itself.
  void call();
  // On the device, behind the call: brings the verdicts back.
  void submit_outputs(Staging& columns);
  // Usable verdicts become those of their members. `counts`: members whose drafts count, empty =
  // all; `drawn`: of the step, to leave out members whose logits are not finite.
  void judge(const std::vector<bool>& counts, const std::vector<int32_t>& drawn);

  bool is_well() const { return status_.ok() && batch_.all_ok(); }
  // Where the device reads what was drawn; a part of the step's shape.
  const Column<int32_t>& row_token() const { return row_token_; }

 private:
  void add_results(Staging& columns);
  template <typename Fn>
  void each_row(size_t s, Fn&& fn) const;

  StepContext& step_;
  LiveRoute& route_;
  Members members_;
  PluginBatch batch_;
  const bool on_device_;
  const size_t capacity_, path_capacity_;  // nodes of a member, nodes of a path
  Column<int32_t> n_nodes_, token_, parent_, flags_, root_token_, root_position_;
  Column<int32_t> row_token_;  // [members, capacity + 1]: root, then nodes; -1 = none
  Column<int32_t> n_accepted_, path_, next_token_;
  Column<int64_t> state_;
  Column<int32_t> rows_from_, rows_to_;  // on the device: what was drawn, and its cell of row_token
  Status status_;
};

}  // namespace specd
