// What the ranks will hold, and where, before weights are read.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/engine.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"

namespace specd {

// Decides where each draft model is, see DraftModel, and plans. A model that the target's ranks can share
// is shared, unless the options say otherwise, or limit the memory of a rank and more pages are left when
// rank 0 has it alone. Those that cannot be used are left out. All ranks come to the same plan. `device`: as
// of each rank. Without the memory of drafters, which only their plugins know. Fails when there is too
// little, naming the rank. REQUIRES a target that the ranks can share.
Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               DraftModels& drafts, Device& device);
// What the line of a KV cache says. `draft`: the draft model whose own it is; empty = the target's.
std::string kv_line(const std::string& draft, int32_t n_pages);
// What the line of a drafter's limit says.
std::string drafter_line(const std::string& route, bool is_draining);

}  // namespace specd
