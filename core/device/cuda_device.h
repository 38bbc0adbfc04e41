// A CUDA device behind core's Device interface. The code is in libspecd_cuda, loaded once per
// process when a device is first requested; nothing else in the project links CUDA.
//
// The library is looked up at $SPECD_CUDA_LIBRARY, otherwise beside the executable and in ../lib
// relative to it. It is never unloaded, because the driver's threads keep running.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/device/device.h"
#include "specd/kernels/cuda.h"

namespace specd {

// Returns N for "cuda:N", and -1 for any other name.
int32_t cuda_index(const std::string& name);

// Fails with kUnsupported when there is no library, one of another build, no driver or a too old
// one, no device with this index, or no code for its architecture; the error names the device, what
// it needs and what was found. Fails with kExhausted when there is too little memory.
Result<std::unique_ptr<Device>> open_cuda_device(int32_t index, const kernels::CudaLimits& limits);

}  // namespace specd
