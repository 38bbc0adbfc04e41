// metrics/1: counters and gauges that a plugin defines, as the host reads them.
#pragma once

#include <string>
#include <vector>

#include "core/plugin/instance/host_context.h"

namespace specd {

struct PluginMetric {
  std::string instance, name, help;
  bool counter = false;
  double value = 0;
};

// [any] All metrics that `owner` has defined, sorted by name.
std::vector<PluginMetric> plugin_metrics(const specd_owner& owner);

}  // namespace specd
