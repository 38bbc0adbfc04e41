// Shared by the files of this folder: the tables they define, and the state of a host.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/services/model.h"
#include "core/services/weights.h"
#include "specd/plugin_api/host.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/memory.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/parts.h"
#include "specd/plugin_api/services/pool.h"
#include "specd/plugin_api/services/rng.h"
#include "specd/plugin_api/services/target.h"
#include "specd/plugin_api/services/weights.h"

namespace specd {

struct ServiceState {
  ServiceLane step;  // of calls on the step's thread
  Device& device;
  int32_t vocab_size;
  WeightService weights;
  std::atomic<ModelService*> models{nullptr};
  Staging staging{};  // of results that a call waits for; empty between calls

  // Whether the propose() that runs is being captured.
  bool is_capturing() const {
    const ModelService* const all = models;
    return all != nullptr && all->is_capturing();
  }
  // The host code of the propose() that runs depends on what it waits for, so no graph can repeat it.
  void note_wait() {
    if (ModelService* const all = models; all != nullptr) all->note_unrepeatable();
  }
  ServiceLane& lane(const specd_call& call) { return call.lane == nullptr ? step : *call.lane; }
  // The staging, made by the first call that needs it. [step]
  Result<Staging*> results();

  // The state of `host`, or null when `host` is not a Services.
  static ServiceState* of(const specd_host* host);
  // Its models, or null.
  static ModelService* models_of(const specd_host* host);
};

// A service as plugins call it. No exception may cross the boundary, so what finds no memory answers
// SPECD_E_EXHAUSTED.
template <auto service, typename... Args>
specd_status or_exhausted(Args... args) noexcept {
  try {
    return service(args...);
  } catch (const std::bad_alloc&) {
    return SPECD_E_EXHAUSTED;
  }
}

// Exclusive use of the worker pool for one service call. The pool runs one task at a time; a task
// that started another would wait for itself.
class PoolTurn {
 public:
  explicit PoolTurn(ServiceLane& lane)
      : lane_(lane), is_mine_(!lane.pool_is_busy.exchange(true, std::memory_order_acquire)) {}
  ~PoolTurn() {
    if (is_mine_) lane_.pool_is_busy.store(false, std::memory_order_release);
  }
  PoolTurn(const PoolTurn&) = delete;
  PoolTurn& operator=(const PoolTurn&) = delete;

  bool is_mine() const { return is_mine_; }

 private:
  ServiceLane& lane_;
  bool is_mine_;
};

extern const specd_kv_api kKvService;
extern const specd_memory kMemoryService;
extern const specd_metrics kMetricsService;
extern const specd_models kModelService;
extern const specd_ops kOpsService;
extern const specd_parts kPartsService;
extern const specd_pool kPoolService;
extern const specd_rng kRngService;
extern const specd_target_api kTargetService;
extern const specd_weights_api kWeightsService;

}  // namespace specd
