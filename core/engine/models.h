// The loaded models and the memory that they share: devices, weights, KV pages.
// [control] open() and load(); afterwards the parts belong to the step thread unless they say otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/engine.h"
#include "core/engine/memory_plan.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"
#include "core/services/model.h"
#include "core/kv/page_pool.h"
#include "core/kv/prefix_cache.h"
#include "core/model/kv_store.h"
#include "core/model/transformer.h"
#include "core/ranks/ranks.h"
#include "core/ranks/worker.h"

namespace specd {

struct Models {
  std::unique_ptr<CpuDevice> cpu;  // plugins run there, whatever device the models use
  std::unique_ptr<Device> cuda;    // null = the models run on the CPU too
  std::vector<std::unique_ptr<Device>> draft_devices;  // of draft models that are elsewhere
  std::unique_ptr<Ranks> ranks;                        // null = this rank has the whole models
  Device* device = nullptr;                            // of the models
  std::unique_ptr<Transformer> target;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<PrefixCache> cache;  // null = off
  std::unique_ptr<ModelService> drafts;
  std::unique_ptr<Worker> worker;
  MemoryPlan plan;
  std::vector<RouteMemory> route_memories;
  std::vector<uint64_t> kv_bytes;      // of each rank
  std::vector<uint64_t> column_bytes;  // of each rank at first
  int32_t logits_rows_max = 0;         // of the target

  Lead* lead() const { return ranks == nullptr ? nullptr : &ranks->lead(); }

  // Opens the devices and checks the draft models.
  Status open(const EngineOptions& options, const Target& wanted);
  // Plans the memory, then loads the target and the draft models. A draft model that cannot be loaded is
  // logged, and its status says why. `limits`: of the routes' drafters. Once, after open().
  Status load(const EngineOptions& options, const Target& wanted,
              std::span<const DrafterLimit> limits, const ProgressFn& progress);

 private:
  // Between open() and load().
  struct Opened {
    DraftModels checked;
    std::vector<std::unique_ptr<Device>> devices;  // of the ranks of this process
    std::vector<RankMemory> memories;
  };
  Status start_ranks(const EngineOptions& options, const Target& wanted, DraftModels& checked,
                     std::vector<std::unique_ptr<Device>> devices);
  void load_drafts(DraftModels checked, const EngineOptions& options, const ProgressFn& progress);

  Opened opened_;
};

}  // namespace specd
