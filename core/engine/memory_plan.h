// What the ranks will hold, and where, before weights are read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/engine.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"
#include "core/spec/route_builder.h"

namespace specd {

// Ranks that share a memory.
struct RankMemory {
  std::string name;  // of its device or machine
  uint64_t bytes = 0;
  std::vector<int32_t> ranks;
};
RankMemory memory_of_all(const EngineOptions& options, const Device& device);
// Of each rank that has a device alone: devices[i] is that of rank i, and with more ranks, on other machines,
// one like it of rank i + n_devices and so on.
std::vector<RankMemory> memories_of_devices(const EngineOptions& options,
                                            std::span<const std::unique_ptr<Device>> devices);

// Decides where each draft model is, see DraftModel, and plans. A model that the target's ranks can share
// is shared, unless the options say otherwise, or limit the memory of a rank and more pages are left when
// rank 0 has it alone. Those that cannot be used are left out. `device`: as of each rank. `memories`: of
// all ranks, or none to plan for other machines. `limits`: of the routes' drafters, which are on
// rank 0. Fails when there is too little memory, naming the ranks. REQUIRES a target that the ranks can share.
Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               DraftModels& drafts, Device& device,
                               std::span<const RankMemory> memories,
                               std::span<const DrafterLimit> limits);
// The line of what the columns of a rank's steps take at first; they grow with the work. Those of draft
// models come on top.
inline constexpr char kColumnsLine[] = "columns, at first";
std::vector<uint64_t> column_bytes(int32_t n_ranks);
// What the line of a device's scratch memory says, of each rank's or of one elsewhere.
std::string scratch_line(const std::string& elsewhere);
// What the line of a KV cache says. `draft`: the draft model whose own it is; empty = the target's.
std::string kv_line(const std::string& draft, int32_t n_pages);
// The name of a draft model in lines, with the device where it is elsewhere.
std::string name_with_place(const DraftModel& draft);
// What the line of a drafter's limit says. `elsewhere`: "cpu" when that is not the models' device, else empty.
std::string drafter_line(const std::string& route, RouteState state, const std::string& elsewhere);
// The same of the rings of a drafter that works beside the step.
std::string rings_line(const std::string& route, RouteState state, const std::string& elsewhere);

// A memory that the versions of routes share with everything else.
struct RouteMemory {
  std::string name = {};    // of the device or machine
  std::string key = {};     // of the configuration, that limits it; empty = there is no more
  bool has_models = false;  // it is that of the models' device
  bool is_host = false;     // or the host's, or both
  uint64_t bytes = 0;
  uint64_t taken = 0;  // by what is not of routes
};
// What a drafter may take of it.
uint64_t bytes_in(const RouteMemory& memory, const DrafterLimit& limit);
// `memories`: as plan_memory() had them, `limits` too, for its `plan`.
std::vector<RouteMemory> memories_of_routes(const EngineOptions& options, const MemoryPlan& plan,
                                            bool models_on_host,
                                            std::span<const RankMemory> memories,
                                            std::span<const DrafterLimit> limits);

}  // namespace specd
