// A CUDA device behind core's Device. Its code lies in libspecd_cuda, which is loaded here, once a
// process, when a device is asked for; nothing else of the project links CUDA.
//
// The library is looked for at $SPECD_CUDA_LIBRARY, else beside the executable and in ../lib from
// there. It stays loaded for ever, as the driver's own threads do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/device/device.h"
#include "specd/kernels/cuda.h"

namespace specd {

// "cuda:N" -> N; -1 when `name` is none.
int32_t cuda_index(const std::string& name);

// kUnsupported naming the device, what it needs and what is there: no library, another build, no
// driver or one too old, no such index, no code for its architecture; kExhausted: too little
// memory.
Result<std::unique_ptr<Device>> open_cuda_device(int32_t index, const kernels::CudaLimits& limits);

}  // namespace specd
