// The host services that plugins may ask for: memory/1, rng/1, metrics/1, pool/1, ops/1,
// model/1 (in model_service.h), and parts/1 (in plugin/parts.cc).
//
// Every argument comes from a plugin and is checked; what is refused is said through report().
// Memory is counted against the owner's quota; scratch is limited to 256 MiB a call, metrics to 64
// an instance. Noise and uniform numbers use the seed in call->sampling, so they need call->batch
// and call->sampling to be set.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/exec/model_service.h"
#include "core/plugin/instance/host_context.h"
#include "specd/kernels/cpu.h"
#include "specd/kernels/ops.h"

namespace specd {

struct PluginMetric {
  std::string instance, name, help;
  bool counter = false;
  double value = 0;
};

class Services final : public ServiceDirectory {
 public:
  // pool.run() and draw_noise use the CPU, from [step] calls only. Both outlive this.
  // memory/1 gives out memory of the host and of `device`.
  Services(CpuDevice& cpu, Device& device, int32_t vocab_size);
  ~Services() override;

  // What model/1 offers; null = no model. Outlives its use. [control] Before plugins run, or after.
  void set_models(ModelService* models);

  const void* find(const char* id) const override;

  struct Impl;  // for the tables of services.cc

 private:
  std::unique_ptr<Impl> impl_;
};

// [any] All metrics that `owner` has defined, by name.
std::vector<PluginMetric> plugin_metrics(const specd_owner& owner);

}  // namespace specd
