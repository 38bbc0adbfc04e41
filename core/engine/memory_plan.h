// What the ranks will hold, before weights are read.
#pragma once

#include "core/device/device.h"
#include "core/engine.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"

namespace specd {

// `drafts`: checked; those that cannot be used are left out. `device`: as of each rank. Without the memory
// of drafters, which only their plugins know.
Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               const DraftModels& drafts, Device& device);

}  // namespace specd
