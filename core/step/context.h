// What the phases of a step share.
//
// A step may find no memory anywhere (std::bad_alloc). Around the calls of a plugin that costs
// drafts, like a shortage of device memory; elsewhere it ends the step (StepRunner::abandon()).
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/services/model.h"

namespace specd {

// For such a shortage.
inline Status no_memory_for(const char* what) {
  return Status(Code::kExhausted, std::string("there is no memory for ") + what +
                                      "; give the process more (ulimit -v, the memory of the "
                                      "machine), or lower engine.max_sequences or "
                                      "engine.step_tokens_max");
}

struct StepContext {
  Device& device;
  CpuDevice& host;  // computes on what plugins leave in host memory
  ModelService& models;
  int32_t vocab_size = 0, hidden_size = 0;
  uint64_t step_id = 0;
  // Columns of plugin calls made outside Worker::run(): on the host, or on the device between two
  // steps.
  Staging calls;
  // 0, 1, ..: every slot that a sequence may have. For end(), which must not fail for want of memory.
  Staging slots;
  Column<int32_t> slot_numbers;

  Column<int32_t> slot_column(int32_t slot) const {
    return {slot_numbers.host + slot, slot_numbers.device + slot, 1};
  }
  // The staging for one call's columns. On the CPU this drops those of the call before; on a device
  // they stay until the stream has finished with them.
  Staging& call_columns() {
    if (device.is_host()) calls.clear();
    return calls;
  }
};

}  // namespace specd
