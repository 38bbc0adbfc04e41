// One device: turns a StepInput into a StepOutput, and moves KV. Knows only rows, pages and draws;
// no sequence, request, route or plugin.
//
//   StepInput --stage--> upload, [parts], forward, draw, [parts], download --> StepOutput
//
// On a device that is not the host, all of this is submitted at once, as a graph when the shape has
// occurred before (graphs.h), and run() waits once. Moves submitted afterwards run before the next
// step's work.
// [step] all functions except those marked [any].
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
#include "core/kv/block_table.h"
#include "core/model/kv_store.h"
#include "core/model/lead.h"
#include "core/model/transformer.h"
#include "core/ranks/graphs.h"
#include "core/ranks/step_input.h"
#include "core/ranks/step_output.h"
#include "core/ranks/stream_part.h"

namespace specd {

// Observes the work of all workers of this process, in order, so that a run can be recorded and
// computed again elsewhere. Used by tests.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // `known` is `input` with the picked tokens instead of picks.
  virtual void ran(const StepInput& input, const StepInput& known, const StepOutput& output) = 0;
  virtual void moved(const std::vector<int32_t>& from, const std::vector<int32_t>& to) = 0;
};

class Worker {
  static constexpr uint64_t kFirstBytes = uint64_t{1} << 20;  // grows with the steps
  static constexpr size_t kMovesAtOnce = 8192;                // slots that one submission moves

 public:
  // What create() allocates, in the device's memory.
  static constexpr uint64_t kColumnBytes = 2 * kFirstBytes + 2 * kMovesAtOnce * sizeof(int32_t);

  // All must outlive this. `lead`: null, or tells the ranks that share the model what it computes.
  // kExhausted when there is no memory for the first columns.
  static Result<std::unique_ptr<Worker>> create(Device& device, Transformer& model, KvStore& kv,
                                                Lead* lead = nullptr);

  // Call before each step: drops the columns of the last one. The parts of the next step add their
  // columns to the result before run().
  Staging& new_columns();
  // Computes `input`. `parts` are indexed by TokenPick::part. On a device that is not the host,
  // calls `meanwhile` once while the device computes.
  // kExhausted: there is no memory for the columns, and nothing was submitted. In debug builds
  // kInvalidArgument when step_input_fault() finds something. Other errors: the device has failed.
  Status run(const StepInput& input, std::span<StreamPart* const> parts,
             const std::function<void()>& meanwhile, StepOutput& output);
  // Copies KV, in stream order; see kernels/attention.h for which
  // orders are allowed. Needs no new memory: waits for earlier moves when there are very many. An
  // error: the device has failed.
  Status move(const KvMoves& moves);
  // The same for all slots of a page.
  Status copy_page(int32_t from, int32_t to);

  Device& device() { return device_; }
  uint64_t column_bytes() const {
    return inputs_.capacity() + outputs_.capacity() + moves_.capacity();
  }
  const Transformer& model() const { return model_; }
  StepLimits limits() const;
  // [any] Total time of all forwards, including waiting.
  uint64_t forward_ns() const { return forward_ns_; }

  // [any] Null = no observer. REQUIRES that no worker is running.
  static void observe(WorkerObserver* observer);

 private:
  struct Columns;
  Worker(Device& device, Transformer& model, KvStore& kv, Lead* lead);
  Columns stage(const StepInput& input, std::span<StreamPart* const> parts);
  bool submit(const Columns& columns, std::span<StreamPart* const> parts, bool capturing);
  StepShape shape_of(const Columns& columns, std::span<StreamPart* const> parts) const;
  void read(const Columns& columns, StepOutput& output) const;
  void read_laws(const StepInput& input, const Columns& columns, StepOutput& output) const;

  Device& device_;
  Transformer& model_;
  KvStore& kv_;
  Lead* const lead_;
  Graphs graphs_;
  Staging inputs_, outputs_, moves_;
  std::atomic<uint64_t> forward_ns_{0};
};

}  // namespace specd
