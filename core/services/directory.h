// The services that plugins may ask for: one file per id in this folder.
//
// Every argument comes from a plugin and is checked; report() says what was refused. Noise and uniform
// numbers use the seed in call->sampling, so they need call->batch and call->sampling to be set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/device/device.h"
#include "core/plugin/instance/host_context.h"

namespace specd {

class ModelService;
struct ServiceState;

class Services final : public ServiceDirectory {
 public:
  // pool/1 and rng/1 use the CPU, in [step] calls only. memory/1 gives out memory of the host and of
  // `device`, ops/1 works on both. Both outlive this.
  Services(CpuDevice& cpu, Device& device, int32_t vocab_size);
  ~Services() override;

  // What model/1 offers; null = no model. Outlives its use. [control] While no plugin runs.
  void set_models(ModelService* models);

  std::span<const ServiceTable> services() const override;

 private:
  friend struct ServiceState;
  std::unique_ptr<ServiceState> state_;
};

}  // namespace specd
