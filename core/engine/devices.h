// Which device each rank has: `devices: [cpu]` is for all ranks, a list of `cuda:N` has one for each rank of a
// machine, in their order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/engine.h"
#include "core/engine/shared_models.h"
#include "specd/kernels/cuda.h"

namespace specd {

// Whether the list itself is right, for any number of machines.
Status check_devices(const EngineOptions& options);
// Whether the list names a device for each rank of this machine.
Status check_places(const EngineOptions& options, int32_t n_here);
// Whether the draft model is on another device than the target.
bool is_elsewhere(const EngineOptions& options, const DraftModelOptions& draft);

// Enough for every model.
kernels::CudaLimits device_limits(const EngineOptions& options, const ModelConfig& target,
                                  const DraftModels& drafts);
// The device that `devices` names, null = the CPU. `place`: of the rank on its machine.
Result<std::unique_ptr<Device>> open_model_device(const EngineOptions& options, int32_t place,
                                                  const kernels::CudaLimits& limits);
// All of the list; none = the CPU.
Result<std::vector<std::unique_ptr<Device>>> open_model_devices(const EngineOptions& options,
                                                                const kernels::CudaLimits& limits);
// Sets the devices of the draft models that are elsewhere. `cpu`: of this process; `opened`: owns the others.
Status open_draft_devices(const EngineOptions& options, const ModelConfig& target, CpuDevice& cpu,
                          DraftModels& drafts, std::vector<std::unique_ptr<Device>>& opened);
// The same as open_model_device() for a rank that does nothing but follow. `threads`: of a CPU.
Result<std::unique_ptr<Device>> open_rank_device(const EngineOptions& options, int32_t place,
                                                 int32_t threads,
                                                 const kernels::CudaLimits& limits);

}  // namespace specd
