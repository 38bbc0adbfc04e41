// The host services that plugins may ask for: memory/1, rng/1, metrics/1, pool/1.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plugin/host_context.h"
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
  // pool.run() and draw_noise use `stream` and `ops`, from [step] calls only. Both outlive this.
  Services(kernels::CpuStream& stream, const kernels::Ops& ops, int32_t vocab_size);
  ~Services() override;

  const void* find(const char* id) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// [any] All metrics that `owner` has defined.
std::vector<PluginMetric> plugin_metrics(const specd_owner& owner);

}  // namespace specd
