// One device: turns a StepInput into a StepOutput, and moves KV. Knows rows, pages and draws; no
// sequence, request, route or plugin.
//
//   StepInput --stage--> upload, [parts], forward, draw, [parts behind], download --> StepOutput
//
// On a device that is not the host the whole line is submitted at once, as a graph when a step of
// its shape came before (graphs.h), and run() waits once. What move() submits afterwards runs
// before the next step's work.
// [step] all functions but metrics().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/model/kv_store.h"
#include "core/model/transformer.h"
#include "core/ranks/graphs.h"
#include "core/ranks/step_input.h"
#include "core/ranks/step_output.h"
#include "core/ranks/stream_part.h"

namespace specd {

// Sees the work of the workers of this process, in order: to record a run and to compute it again
// elsewhere. Tests use it.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // `input` has the tokens that the device picked, and no picks.
  virtual void ran(const StepInput& input, const StepOutput& output) = 0;
  virtual void moved(const std::vector<int32_t>& from, const std::vector<int32_t>& to) = 0;
};

class Worker {
 public:
  // All outlive this. kExhausted without memory for the first columns.
  static Result<std::unique_ptr<Worker>> create(Device& device, Transformer& model, KvStore& kv);

  // Forgets the columns of the last step. The result takes the columns of the next step's parts,
  // before run().
  Staging& new_columns();
  // Computes `input`. `parts`: what TokenPick::part counts. `meanwhile` is called once on a device
  // that is not the host, while it computes.
  // kExhausted: there is no memory for the columns, and nothing was submitted. In debug builds
  // kInvalidArgument when step_input_fault() finds something. Other errors: the device has failed.
  Status run(const StepInput& input, std::span<StreamPart* const> parts,
             const std::function<void()>& meanwhile, StepOutput& output);
  // Copies the KV of slot from[i] to slot to[i], in stream order; see kernels/attention.h for what
  // the order asks of them. Not ok: the device has failed.
  Status move(const std::vector<int32_t>& from, const std::vector<int32_t>& to);
  // The same for all slots of a page.
  Status copy_page(int32_t from, int32_t to);

  Device& device() { return device_; }
  const Transformer& model() const { return model_; }
  StepLimits limits() const;
  // [any] Time that forwards took, waiting included.
  uint64_t forward_ns() const { return forward_ns_; }

  // [any] Null = nobody. Requires that no worker runs.
  static void observe(WorkerObserver* observer);

 private:
  struct Columns;
  Worker(Device& device, Transformer& model, KvStore& kv);
  Columns stage(const StepInput& input, std::span<StreamPart* const> parts);
  bool submit(const Columns& columns, std::span<StreamPart* const> parts, bool capturing);
  StepShape shape_of(const Columns& columns, std::span<StreamPart* const> parts) const;
  void read(const Columns& columns, StepOutput& output) const;

  Device& device_;
  Transformer& model_;
  KvStore& kv_;
  Graphs graphs_;
  Staging inputs_, outputs_, moves_;
  std::atomic<uint64_t> forward_ns_{0};
};

}  // namespace specd
