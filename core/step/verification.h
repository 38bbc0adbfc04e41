// One verify() call for the members of one route, on the host after the forward or on the device
// after the draw. A verdict is checked before it is used; a member without a usable one has none.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/context.h"
#include "core/ranks/step_output.h"
#include "core/ranks/stream_part.h"
#include "core/step/plugin_batch.h"
#include "core/step/proposal.h"

namespace specd {

class Verification {
 public:
  // On the host, of what a step has drawn. Adds its columns to `columns`.
  Verification(StepContext& step, LiveRoute& route, Members members, const StepOutput& output,
               Staging& columns);
  // On the device, for the drafts of `proposal`. REQUIRES the members' places.
  Verification(StepContext& step, const Proposal& proposal, Staging& columns);

  // On the device, after the draw: copies the drawn tokens to the verifier's columns, and cuts each
  // draft before its first invalid token.
  void submit_inputs(const DrawnColumns& drawn);
  // Calls the verifier.
  void call();
  // On the device, after call(): copies the verdicts to the host.
  void submit_outputs(Staging& columns);
  // Gives the members their verdicts, where usable. `counts`: the members whose drafts are usable,
  // empty = all. `drawn`: see StepOutput; members whose logits are not finite are skipped.
  void judge(const std::vector<bool>& counts, const std::vector<int32_t>& drawn);

  bool is_well() const { return status_.ok() && batch_.all_ok(); }
  // The drawn tokens as the verifier gets them. Its address is part of the step's shape.
  const Column<int32_t>& row_token() const { return row_token_; }

 private:
  void add_results(Staging& columns);
  void add_laws(const StepOutput* output, Staging& columns);
  template <typename Fn>
  void each_row(size_t s, Fn&& fn) const;

  StepContext& step_;
  LiveRoute& route_;
  Members members_;
  PluginBatch batch_;
  const bool on_device_;
  const size_t capacity_, path_capacity_;  // nodes per member, nodes per path
  Column<int32_t> n_nodes_, token_, parent_, flags_, root_token_, root_position_;
  Column<int32_t> row_token_;  // [members, capacity + 1]: root, then nodes; -1 = none
  Column<int32_t> q_row_;      // the same of rows of the route's q; empty when none is handed on
  Column<int32_t> row_;        // the same of rows of law_; empty unless the verifier reads laws
  const float *law_ = nullptr, *lse_ = nullptr;  // where it works
  int32_t n_laws_ = 0;
  Column<int32_t> n_accepted_, path_, next_token_;
  Column<int64_t> state_;
  Column<int32_t> rows_from_, rows_to_;  // on the device: logits rows, and their cells of row_token
  Status status_;
};

}  // namespace specd
