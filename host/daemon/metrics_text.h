// Metric families as the text format 0.0.4 of Prometheus. The one file that knows prometheus-cpp.
#pragma once

#include <string>
#include <vector>

#include "core/base/metrics.h"

namespace specd::host {

constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const std::vector<MetricFamily>& families);

}  // namespace specd::host
