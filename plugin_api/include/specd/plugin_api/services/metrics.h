/* Counters and gauges under the instance's name, kept and exported by the host. */
#ifndef SPECD_PLUGIN_API_SERVICES_METRICS_H
#define SPECD_PLUGIN_API_SERVICES_METRICS_H

#include <specd/plugin_api/abi_layout.h>
#include <specd/plugin_api/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPECD_SERVICE_METRICS "specd.host.metrics/1#" SPECD_METRICS_LAYOUT

enum { SPECD_METRIC_COUNTER = 0, SPECD_METRIC_GAUGE = 1 };
typedef struct specd_metric specd_metric;

typedef struct specd_metrics {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] `name` must match [a-z][a-z0-9_]{0,63}. Strings are copied. *out lives as long as the
   * instance. Defining a name again returns the same metric. */
  specd_status (*define)(const specd_host *, specd_owner *, uint32_t kind, const char *name,
                         const char *help, specd_metric **out) SPECD_NOEXCEPT;
  /* [any] Adds to a counter (negative and non-finite values are dropped) or sets a gauge. */
  void (*record)(const specd_host *, specd_metric *, double value) SPECD_NOEXCEPT;
} specd_metrics;

#ifdef __cplusplus
}
#endif
#endif
