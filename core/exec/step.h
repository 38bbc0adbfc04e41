// One step: begin -> propose -> forward -> draw -> verify -> commit -> update -> end.
//
// Plugins of a route are called once a step for all its sequences. Nothing they return is believed;
// whatever goes wrong with a drafter costs drafts only. Knows no method by name.
//
// On a device that is not the host: drafters that were granted the device propose in the stream,
// right before the forward, their tokens become its rows there, and their verifiers judge there;
// all others have proposed before and are judged after, on the host. What the step submits goes in
// one piece when its shape was seen before (step_graphs.h). The step waits once, for what was
// drafted, drawn and judged; it is checked on the host before it counts. What commit and update()
// submit runs before the next step's work. [step] one step at a time, always on the same thread or
// ordered by the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "core/base/duration_histogram.h"
#include "core/device/device.h"
#include "core/exec/active_sequence.h"
#include "core/device/staging.h"
#include "core/exec/model_service.h"
#include "core/exec/step_graphs.h"
#include "core/model/kv_store.h"
#include "core/model/transformer.h"
#include "core/sched/scheduler.h"

namespace specd {

struct StepCounters {
  uint64_t rows = 0;
  uint64_t tokens = 0;
  uint64_t kv_moves = 0;
};

// Written by run(), read by any thread.
struct StepMetrics {
  DurationHistogram step_time;  // of run()
  std::atomic<uint64_t> forward_ns{0};
};

class StepRunner {
 public:
  // Rows of one update() that a drafter of this depth may get.
  static uint32_t update_rows_max(uint32_t max_depth);

  // All outlive this. kExhausted when there is no memory for its columns.
  static Result<std::unique_ptr<StepRunner>> create(Device& device, Transformer& model, KvStore& kv,
                                                    ModelService& draft_models);

  ~StepRunner();

  // Runs `plan` over `running` (plan indices; entries without a slot are skipped), whose tables
  // have the pages of the plan. On return every sequence that decided tokens has them appended and
  // its finish() says whether it goes on. A sequence whose logits are not finite fails alone. One
  // that is cancelled or past its deadline is left out of what is still to come. Not ok: the device
  // failed; nothing was decided, and nothing can be any more.
  // `meanwhile` is called once where the device is not the host: while it computes, if it has work.
  Result<StepCounters> run(const StepPlan& plan, std::vector<ActiveSequence>& running,
                           const std::function<void()>& meanwhile);

  // Copies the KV of a whole page.
  Status copy_page(int32_t from, int32_t to);

  // Tells the drafter that a sequence is gone; its sessions with draft models go too. Idempotent.
  void end(ActiveSequence& sequence, uint32_t reason);

  // [any]
  const StepMetrics& metrics() const { return metrics_; }

 private:
  struct Group;         // the sequences of one route in this step, and the columns of its calls
  struct Proposal;      // one propose()
  struct Verification;  // one verify()
  struct Penalties {    // columns of kernels::PenalizeArgs, empty when nobody penalizes
    Column<kernels::PenaltyRow> row;  // [logits rows]
    Column<kernels::PenaltySeen> seen;
    Column<int32_t> path;
  };
  StepRunner(Device& device, Transformer& model, KvStore& kv, ModelService& draft_models);
  using Members = std::vector<ActiveSequence*>;

  void begin_new(std::vector<ActiveSequence>& running);
  void begin(LiveRoute& route, const Members& members, uint32_t attach_mode);
  Status make_room(const Members& members, const Members& drafting);
  void prepare(Proposal& proposal);
  bool propose(Proposal& proposal);
  void take(Proposal& proposal);
  void expect_tree(const Proposal& proposal);
  void build_rows(const Members& members);
  Penalties stage_penalties(const Members& members);
  Status compute(const Members& members, const std::function<void()>& meanwhile);
  Status verify(LiveRoute& route, const Members& members);
  void verify(Verification& call);
  void judge(const Verification& call);
  void prepare_verdict(Proposal& proposal);
  void submit_verdict(Verification& call, const Column<int32_t>& row_tokens);
  Status move(const std::vector<int32_t>& from, const std::vector<int32_t>& to);
  Status room_behind(uint64_t bytes);
  Status to_device(const LiveRoute& route, Group& group);
  Result<uint64_t> commit(const Members& members);
  Status update(LiveRoute& route, const Members& members);
  void end_drafting(ActiveSequence& sequence, uint32_t reason);

  template <typename Fn>
  void by_route(const Members& members, Fn&& fn);

  Device& device_;
  Transformer& model_;
  KvStore& kv_;
  ModelService& draft_models_;
  uint64_t step_id_ = 0;
  StepMetrics metrics_;

  StepGraphs graphs_;

  Staging staging_;                // columns of what the step submits before it waits
  Staging behind_;                 // of what is submitted outside of that
  std::list<Proposal> proposals_;  // of this step, on the device

  ForwardRows rows_;
  std::vector<kernels::DrawRow> draw_rows_;
  std::vector<int32_t> row_token_;      // [logits rows]
  std::vector<int32_t> top1_;           // [logits rows], empty when nobody asked
  std::vector<int32_t> tap_row_of_;     // [rows] index among the tapped rows, -1 = none
  std::vector<const float*> tap_rows_;  // [taps] in host memory, [tapped rows, hidden]
};

}  // namespace specd
