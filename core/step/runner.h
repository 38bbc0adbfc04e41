// One step over the running sequences, in six phases:
//
//   begin    drafters begin new sequences                    drafting.h
//   propose  drafters draft                                  proposal.h, device_draft.h, shadow.h
//   compute  compose the rows, forward, draw                 compose.h, ranks/worker.h
//   verify   verifiers judge                                 verification.h
//   commit   verdicts become text and KV moves               commit.h
//   update   drafters learn what was committed               drafting.h
//
// One plugin call covers all sequences of its route. Everything that a plugin returns is checked
// before use, and a drafter's failure costs drafts only. The runner knows no method by name.
//
// On a device that is not the host, drafters of a fixed shape that were granted the device propose
// on its stream right before the forward, and verifiers that can work there judge right after the
// draw. All others propose before and judge after; their proposals are in host memory. The step
// waits once for all device work, besides what such a drafter waits for in propose(). Work that
// commit and update submit runs before the next step's.
// [step] one step at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "core/base/histogram.h"
#include "core/ranks/worker.h"
#include "core/sched/scheduler.h"
#include "core/step/context.h"
#include "core/step/device_draft.h"
#include "core/step/draft_watch.h"
#include "core/step/plugin_batch.h"

namespace specd {

struct StepCounters {
  uint64_t rows = 0;
  uint64_t kv_moves = 0;
};

class StepRunner {
 public:
  // What create() allocates for the first columns, in the device's memory; grows with the steps.
  static constexpr uint64_t kColumnBytes = uint64_t{1} << 20;

  // All three must outlive this. kExhausted when there is no memory for the first columns.
  static Result<std::unique_ptr<StepRunner>> create(Worker& worker, ModelService& models,
                                                    CpuDevice& host, int32_t max_sequences);

  uint64_t column_bytes() const { return step_.calls.capacity(); }
  // Runs `plan` over `running`, which it indexes and whose tables have the planned pages. On return
  // all decided tokens are appended, and finish() says whether a sequence continues. A sequence
  // whose logits are not finite fails alone. A sequence that is cancelled or past its deadline is
  // left out of the remaining phases. Without memory for the rows of the step its members fail;
  // without memory for the calls of a plugin only drafts are lost. An error is final: the device has
  // failed. Throws std::bad_alloc where memory is short elsewhere; then call abandon().
  // On a device that is not the host, calls `meanwhile` once, while the device computes if it has
  // work.
  Result<StepCounters> run(const StepPlan& plan, std::vector<ActiveSequence>& running,
                           const std::function<void()>& meanwhile);

  // Waits for what the step has submitted, and forgets it. The members' texts and KV may be half done,
  // so they must end. An error is final: the device has failed.
  Status abandon();

  // Whether logits of this sequence's root and nodes are copied to host memory: for log-probabilities,
  // or for a verifier that works there.
  bool copies_logits(const ActiveSequence& member) const;

  // The sequence leaves its slot or its route: see end_session() and end_shadow().
  void end(ActiveSequence& member, uint32_t reason);

  // The shadow of its route has it no more.
  void end_shadow(ActiveSequence& member);

  // What steps do with drafts.
  DraftWatch& watch() { return watch_; }

  // [any] Durations of run().
  const DurationHistogram& step_time() const { return step_time_; }
  // Tokens of prompts that a step computed, and new ones.
  const TokenHistogram& step_tokens() const { return step_tokens_; }

 private:
  StepRunner(Worker& worker, ModelService& models, CpuDevice& host);
  void propose_on_host(const Members& drafting, const std::function<void()>& meanwhile);
  void propose_on_device(const Members& drafting);
  Status compute(const Members& members, const std::function<void()>& meanwhile);
  // After a wait: drops what the device has finished with.
  void stream_has_passed();
  void verify_on_host(const Members& members);
  void update_drafters(const Members& members);

  Worker& worker_;
  StepContext step_;
  DurationHistogram step_time_;
  TokenHistogram step_tokens_;
  DraftWatch watch_;

  // Of the current step.
  std::list<DeviceDraft> device_drafts_;
  StepInput input_;
  StepOutput output_;
  std::vector<ComposeItem> items_;
  std::vector<RowPlace> places_;
};

}  // namespace specd
