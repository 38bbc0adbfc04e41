// What Triton tells of a model's use, made of the engine's metrics: for ModelStatistics, and for the names that its
// dashboards and genai-perf read (github.com/triton-inference-server/server, docs/user_guide/metrics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/engine.h"
#include "host/triton/contract.h"

namespace specd::host {

struct InferStatistics {
  struct Duration {
    uint64_t count = 0, ns = 0;
  };
  uint64_t inference_count = 0, execution_count = 0;
  // `fail` has no time: the engine does not measure what it refuses.
  Duration success, fail, queue, compute_input, compute_infer, compute_output;
  uint64_t n_cancelled = 0, n_refused = 0, n_failed = 0;  // of `fail`
  uint64_t n_pending = 0;
};

// [any] Of all requests, whichever protocol they came by. Prefill counts as input, decoding as inference.
InferStatistics infer_statistics(const std::vector<MetricFamily>& metrics);

// nv_inference_*: counters without `_total`, as Triton has them.
std::vector<MetricFamily> triton_names(const InferStatistics& statistics, const TritonModel& model);

}  // namespace specd::host
