#include "core/services/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/mutex.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {
namespace {

specd_status metrics_define(const specd_host*, specd_owner* owner, uint32_t kind, const char* name,
                            const char* help, specd_metric** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "metrics.define: out is null");
  *out = nullptr;
  if (owner == nullptr || name == nullptr || !is_metric_name(name) || kind > SPECD_METRIC_GAUGE) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "metrics.define: expected an owner, a name like [a-z][a-z0-9_]{0,63} and a kind "
                  "of SPECD_METRIC_*");
  }
  const bool counter = kind == SPECD_METRIC_COUNTER;
  const MutexLock lock(owner->mutex);
  const auto found = owner->metrics.find(name);
  if (found != owner->metrics.end()) {
    if (found->second->counter != counter) {
      return refuse(nullptr, SPECD_E_INVALID,
                    std::string("metrics.define: ") + name + " was defined with the other kind");
    }
    *out = found->second.get();
    return SPECD_OK;
  }
  if (owner->metrics.size() >= kMetricsMax) {
    return refuse(nullptr, SPECD_E_EXHAUSTED, "metrics.define: an instance has at most 64 metrics");
  }
  auto metric = std::make_unique<specd_metric>();
  metric->name = name;
  if (help != nullptr) metric->help.assign(help, strnlen(help, kMetricHelpBytesMax));
  metric->counter = counter;
  const std::string key = metric->name;
  *out = owner->metrics.emplace(key, std::move(metric)).first->second.get();
  return SPECD_OK;
}

void metrics_record(const specd_host*, specd_metric* metric, double value) noexcept {
  if (metric == nullptr) return;
  if (!metric->counter) {
    metric->value.store(value, std::memory_order_relaxed);
  } else if (std::isfinite(value) && value > 0) {
    metric->value.fetch_add(value, std::memory_order_relaxed);
  }
}

}  // namespace

const specd_metrics kMetricsService = {sizeof(specd_metrics), 0, or_exhausted<metrics_define>,
                                       metrics_record};

std::vector<PluginMetric> plugin_metrics(const specd_owner& owner) {
  std::vector<PluginMetric> all;
  const MutexLock lock(owner.mutex);
  for (const auto& [name, metric] : owner.metrics) {
    all.push_back({owner.name, name, metric->help, metric->counter,
                   metric->value.load(std::memory_order_relaxed)});
  }
  std::sort(all.begin(), all.end(),
            [](const PluginMetric& a, const PluginMetric& b) { return a.name < b.name; });
  return all;
}

}  // namespace specd
