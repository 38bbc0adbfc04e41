// What the phases of a step share.
#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/services/model.h"

namespace specd {

struct StepContext {
  Device& device;
  ModelService& models;
  int32_t vocab_size = 0, hidden_size = 0;
  uint64_t step_id = 0;
  // Columns of plugin calls outside of the worker's run(): on the host, or on the device between
  // two steps.
  Staging calls;

  // For one call. On a device the columns of earlier calls stay until its stream has passed them.
  Staging& call_columns() {
    if (device.is_host()) calls.clear();
    return calls;
  }
};

}  // namespace specd
