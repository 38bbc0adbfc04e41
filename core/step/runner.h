// One step over the running sequences, in six phases:
//
//   begin    drafters meet new sequences                     drafting.h
//   propose  drafters guess                                  proposal.h, device_draft.h
//   compute  compose the rows, forward, draw                 compose.h, ranks/worker.h
//   verify   verifiers judge                                 verification.h
//   commit   verdicts become text and moves of KV            commit.h
//   update   drafters hear what was committed                drafting.h
//
// A plugin is called once a step for all sequences of its route. Nothing that it returns is used
// unchecked, and whatever goes wrong with a drafter costs drafts only. The runner knows no method
// by name.
//
// On a device that is not the host, drafters that were granted the device propose in its stream
// right before the forward, and their verifiers judge there right behind the draw; all others
// propose before and judge after, on the host. The step waits once for all of it. What commit and
// update submit runs before the next step's work.
// [step] one step at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "core/base/duration_histogram.h"
#include "core/ranks/worker.h"
#include "core/sched/scheduler.h"
#include "core/step/context.h"
#include "core/step/device_draft.h"
#include "core/step/plugin_batch.h"

namespace specd {

struct StepCounters {
  uint64_t rows = 0;
  uint64_t tokens = 0;
  uint64_t kv_moves = 0;
};

class StepRunner {
 public:
  // Both outlive this. kExhausted without memory for the first columns.
  static Result<std::unique_ptr<StepRunner>> create(Worker& worker, ModelService& models);

  // Runs `plan` over `running` (plan indices), whose tables have the pages of the plan. On return
  // every sequence that decided tokens has them appended, and its finish() says whether it goes on.
  // A sequence whose logits are not finite fails alone. One that is cancelled or past its deadline
  // is left out of what is still to come. Not ok: the device has failed; nothing was decided, and
  // nothing can be any more.
  // `meanwhile` is called once where the device is not the host: while it computes, if it has work.
  Result<StepCounters> run(const StepPlan& plan, std::vector<ActiveSequence>& running,
                           const std::function<void()>& meanwhile);

  // Tells the drafter that a sequence is gone; its sessions with draft models go too. Idempotent.
  void end(ActiveSequence& member, uint32_t reason);

  // [any] Times of run().
  const DurationHistogram& step_time() const { return step_time_; }

 private:
  StepRunner(Worker& worker, ModelService& models);
  void propose_on_host(const Members& drafting, const std::function<void()>& meanwhile);
  void propose_on_device(const Members& drafting);
  Status compute(const Members& members, const std::function<void()>& meanwhile);
  Status verify_on_host(const Members& members);
  Status update_drafters(const Members& members);

  Worker& worker_;
  StepContext step_;
  DurationHistogram step_time_;

  // Of the current step.
  Staging* device_columns_ = nullptr;  // the worker's
  std::list<DeviceDraft> device_drafts_;
  StepInput input_;
  StepOutput output_;
  std::vector<ComposeItem> items_;
  std::vector<RowPlace> places_;
};

}  // namespace specd
