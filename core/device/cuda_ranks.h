// Ranks that have a CUDA device each: their exchanges, between the memory of the devices and in the order of
// their streams, by NCCL.
#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/device/device.h"

namespace specd {

// This rank's end. All ranks of `host` call it, with a CUDA device each, and wait for each other, for five
// minutes at most; when one cannot join, no rank gets an end and the group has failed. Deadline and failure of
// the exchanges are those of `host`: Device::synchronize() gives up when the stream waits for other ranks longer
// than that, and ends what is under way when the group has failed. Both must outlive the result, and it the
// graphs with its exchanges.
// REQUIRES a CUDA device.
Result<std::unique_ptr<Exchanges>> join_cuda_ranks(Device& device, Collective& host);

}  // namespace specd
