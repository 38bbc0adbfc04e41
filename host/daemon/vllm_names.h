// Metrics under the names that vLLM uses, for benchmarks and dashboards that were made for vLLM.
#pragma once

#include <vector>

#include "core/base/metrics.h"

namespace specd::host {

// Appends a copy of each family that vLLM has too; the label `model` becomes `model_name`.
void add_vllm_names(std::vector<MetricFamily>& families);

}  // namespace specd::host
