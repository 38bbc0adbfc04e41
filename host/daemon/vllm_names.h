// The names under which tools look for an engine's metrics: benchmarks and dashboards made for vLLM
// read these, and find the same numbers as under our own.
#pragma once

#include <vector>

#include "core/base/metrics.h"

namespace specd::host {

// Appends a copy of each family that has such a name; the label `model` becomes `model_name`.
void add_vllm_names(std::vector<MetricFamily>& families);

}  // namespace specd::host
